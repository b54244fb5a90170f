#!/usr/bin/env bash
# A SLURM cluster of two nodes on this host: srun starts our binary as two ranks, and scripts/train.slurm does what it
# should with logs, prolog, wrapper and exit codes. Skips (77) without root or without Debian's slurm-wlm and munge.
#   usage: slurm_test.sh BINARY
set -euo pipefail
binary=$(readlink -f "${1:?usage: slurm_test.sh BINARY}")
root=$(dirname "$(dirname "$(dirname "$(readlink -f "$0")")")")
# shellcheck source=tests/distributed/slurm_cluster.sh
. "$root/tests/distributed/slurm_cluster.sh"

# --- our binary, by SLURM's variables ---
export HYPERION_DEVICE=cpu OMP_NUM_THREADS=1
cd "$root"
MASTER_ADDR=127.0.0.1 timeout 200 srun -N2 --ntasks-per-node=1 --kill-on-bad-exit=1 "$binary" train configs/debug_model.toml \
  --training.steps=2 --metrics.log_freq=1 --training.seq_len=128 --training.local_batch_size=1 --job.dump_folder="$folder/dump" >"$folder/srun.log" 2>&1 || fail "srun of the binary"
grep -q 'step: *2 ' "$folder/srun.log" || fail "no line of step 2"
echo "two ranks under srun trained two steps"

# --- the wheel, from a folder where nothing else is ---
if [ "$binary" = "$root/build/hyperion" ]; then  # which is what package.sh packages
  "$root/scripts/package.sh" --wheel --no-build --into "$folder/made" >"$folder/package.log" 2>&1 || fail "there is no wheel"
  python3 -m venv "$folder/venv"
  "$folder/venv/bin/pip" install --quiet --no-index --no-deps "$folder"/made/*.whl
  dirname "$(sed -n 's/^torch //p' "$root/build/setup")" >"$(echo "$folder"/venv/lib/python3*/site-packages)/torch.pth"
  job=$(cd "$folder" && venv/bin/hyperion-slurm --parsable --nodes=2 --ntasks-per-node=1 --gpus-per-node=0 --cpus-per-task=1 --time=5 \
    --output="$folder/job-%j.log" debug_model --training.steps=2 --metrics.log_freq=1 --training.seq_len=128 --training.local_batch_size=1)
  wheel_job_has_ended() { job_is "$job" COMPLETED || job_is "$job" FAILED; }
  wait_until "job $job of the wheel" wheel_job_has_ended
  grep -q 'step: *2 ' "$folder/job-$job.log" || fail "the wheel's job has no line of step 2"
  echo "hyperion-slurm trained two steps on two nodes"
fi

# --- scripts/train.slurm, with programs that stand in for the binary ---
submit() {  # STAND-IN [SBATCH OPTION...]: prints the job's number
  printf '#!/bin/sh\n%s\n' "$1" >"$folder/stand_in"
  chmod 755 "$folder/stand_in"
  HYPERION_BINARY=$folder/stand_in HYPERION_ROOT=$root sbatch --parsable -N2 --ntasks-per-node=1 --gpus-per-node=0 \
    --cpus-per-task=1 --time=5 --output="$folder/job-%j.log" "${@:2}" scripts/train.slurm some.toml --a.b=c
}
job_restarted() { [ "$(job_field "$1" Restarts)" -ge "${2:-1}" ]; }  # JOB [TIMES]: as often at least
# A job that was requeued waits for two minutes. Start it sooner, but not in the second in which it was requeued: for slurmd
# that would be the job it has just ended.
started_now() {  # JOB CONDITION...
  if "${@:2}"; then return; fi
  sleep 3
  scontrol update JobId="$1" StartTime=now 2>"$folder/update.err" || true
  "${@:2}"
}
ended() {  # JOB CODE: it has failed with this code, for good
  wait_until "job $1 to fail" job_is "$1" FAILED
  [ "$(job_field "$1" ExitCode)" = "$2:0" ] || fail "job $1: exit code $(job_field "$1" ExitCode), expected $2"
  [ "$(job_field "$1" Restarts)" = "${3:-0}" ] || fail "job $1 was started again"
}
says() { grep -qF -- "$2" "$1" || fail "$1 does not say: $2"; }  # FILE TEXT
says_once() { [ "$(grep -cF -- "$2" "$1")" = 1 ] || fail "$1 does not say once: $2"; }
log_of() { echo "$folder/job-$1.log"; }  # JOB
rank_log() { echo "$folder/job-$1.ranks/rank_$2.n$2.log"; }  # JOB RANK

# shellcheck disable=SC2016  # for the job's shell
job=$(submit 'echo "$SLURM_PROCID of $SLURM_NTASKS at $MASTER_ADDR, lead $HYPERION_SIGNAL_LEAD, binding $SLURM_CPU_BIND_TYPE: $*"')
wait_until "job $job to complete" job_is "$job" COMPLETED
says "$(rank_log "$job" 1)" '1 of 2 at 127.0.0.1, lead 120, binding none: train some.toml --a.b=c'
says "$(log_of "$job")" '0 of 2 at'
if grep -q '1 of 2' "$(log_of "$job")"; then fail "a rank that LOG_RANK leaves out is in the job's log"; fi
echo "every rank has a log with its number and node; the job's log shows rank 0"

printf 'export FROM_PROLOG="set by the prolog"\necho the prolog ran\n' >"$folder/prolog"
# shellcheck disable=SC2016
job=$(HYPERION_PROLOG=$folder/prolog HYPERION_WRAPPER='env "WRAPPED=yes  $indeed"' NCCL_IB_HCA=mlx5_7 OMP_NUM_THREADS=3 SRUN_CPUS_PER_TASK=1 \
  submit 'echo "$FROM_PROLOG, wrapped: $WRAPPED, $NCCL_IB_HCA $OMP_NUM_THREADS"')
wait_until "job $job to complete" job_is "$job" COMPLETED
says "$(rank_log "$job" 1)" 'the prolog ran'
# shellcheck disable=SC2016
says "$(rank_log "$job" 1)" 'set by the prolog, wrapped: yes  $indeed, mlx5_7 3'
job=$(HYPERION_PROLOG=$folder/none submit 'echo started')
ended "$job" 2
says_once "$(log_of "$job")" 'cannot be read'
job=$(HYPERION_WRAPPER="no-such-container exec" submit 'echo started')
ended "$job" 2
says_once "$(log_of "$job")" "starts with 'no-such-container', which is no program here"
job=$(HYPERION_WRAPPER='env "open' submit 'echo started')
ended "$job" 2
says_once "$(log_of "$job")" 'HYPERION_WRAPPER cannot be split into words'
if grep -q '^started' "$(log_of "$job")"; then fail "the program was started without its wrapper"; fi
echo "every rank reads the prolog and runs under the wrapper, with the user's variables"

mkdir "$folder/two  words"
# shellcheck disable=SC2016
job=$(HYPERION_SRUN_ARGS="--chdir='$folder/two  words'"' --export="ALL,FROM_SRUN=\$HOME * $(date)" --cpu-bind=rank' submit 'echo "$FROM_SRUN in $PWD, binding $SLURM_CPU_BIND_TYPE"')
wait_until "job $job to complete" job_is "$job" COMPLETED
for rank in 0 1; do says "$(rank_log "$job" $rank)" "\$HOME * \$(date) in $folder/two  words, binding rank"; done
job=$(HYPERION_SRUN_ARGS='--chdir="/tmp' submit 'echo started')
ended "$job" 2
says_once "$(log_of "$job")" 'HYPERION_SRUN_ARGS cannot be split into words (see above): --chdir="/tmp'
job=$(HYPERION_SRUN_ARGS='--container-image=/images/none.sqsh' submit 'echo started')  # Pyxis, which is not there
ended "$job" 255  # srun's
says_once "$(log_of "$job")" "unrecognized option '--container-image=/images/none.sqsh'"
if grep -q '^started' "$(log_of "$job")"; then fail "the program was started without srun's options"; fi
echo "srun gets the user's options word by word, and nothing of them is expanded"

# shellcheck disable=SC2016
job=$(HYPERION_KILL_SECONDS=5 submit '[ "$SLURM_PROCID" = 0 ] || { echo "the loss is not finite" >&2; exit 93; }; exec sleep 120')
ended "$job" 93
says_once "$(log_of "$job")" 'rank 1 failed with exit code 93 on n1'
says_once "$(log_of "$job")" 'the loss is not finite'
says "$(rank_log "$job" 1)" 'the loss is not finite'
echo "exit code 93 ends the job for good, and one line names the rank"

# The stand-in takes rank 0's part: the file that tells how far this start has come.
# shellcheck disable=SC2016
progress='[ "$SLURM_PROCID" != 0 ] || echo 5 8 >"$HYPERION_PROGRESS_FILE";'
job=$(submit "$progress exit 75")
wait_until "job $job to be requeued" job_restarted "$job"
[ "$(job_field "$job" ExcNodeList)" = '(null)' ] || fail "a node was excluded after 75"
scancel "$job"
echo "exit code 75 starts it again"

for code in 71 139; do
  job=$(submit "$progress exit $code" -N1)
  wait_until "job $job to be requeued" job_restarted "$job"
  scancel "$job"
done
echo "so do 71 and 139"

job=$(submit "${progress/8/5} exit 75")
ended "$job" 75
says "$(log_of "$job")" 'not started again: this start began after step 5 and saved no later one'
job=$(HYPERION_MAX_RESTARTS=0 submit "$progress exit 71")
ended "$job" 71
says "$(log_of "$job")" 'not started again: it has been, 0 times (HYPERION_MAX_RESTARTS=0)'
for code in 2 65 70 72 73 74 93; do
  job=$(submit "$progress exit $code" -N1)
  ended "$job" $code
done
echo "a start without progress, the last one allowed and every other code end the job"

job=$(submit "$progress kill -KILL \$\$" -N1)
wait_until "job $job to be requeued" job_restarted "$job"
excluded() { [ "$(job_field "$job" ExcNodeList)" = n0 ]; }
wait_until "the node of the killed rank to be excluded" excluded
wait_until "job $job to be requeued from the other node" started_now "$job" job_restarted "$job" 2
[ "$(job_field "$job" ExcNodeList)" = n0 ] || fail "excluded: $(job_field "$job" ExcNodeList)"
wait_until "the word about n1" grep -q 'n1 is suspect, but not excluded: without it partition debug has 0 nodes of 1' "$(log_of "$job")"
says_once "$(log_of "$job")" 'failed with exit code 137 on n0'
scancel "$job" || true  # the third start may have ended it already
echo "a rank that is killed starts the job again on other nodes, as long as there are enough"

job=$(submit "exit 76" -N1)  # without progress
wait_until "job $job to be requeued" job_restarted "$job"
wait_until "the node with the failed GPU to be excluded" excluded
wait_until "job $job to fail" started_now "$job" job_is "$job" FAILED
ended "$job" 76 2
says_once "$(log_of "$job")" 'not started again: n1 has failed before, and could not be excluded'
echo "a GPU that fails starts the job again once per node"

# shellcheck disable=SC2016
job=$(submit "$progress"' trap "sleep 1; exit 75" TERM; touch "$HYPERION_LOG_DIR/ready"; while :; do sleep 0.1; done' -N1)
wait_until "job $job to run" test -e "$folder/job-$job.ranks/ready"
scancel "$job"
wait_until "job $job to be cancelled" job_is "$job" CANCELLED
nothing_runs() { [ -z "$(squeue -h)" ]; }
wait_until "job $job to end" nothing_runs
[ "$(job_field "$job" Restarts)" = 0 ] || fail "a cancelled job was started again"
echo "a job that is cancelled is not started again, although its state was saved"

# --- train.slurm with the binary: rank 1 is killed in step 3, the job starts again and ends well ---
# shellcheck disable=SC2016  # for the program
job=$(HYPERION_ROOT=$root HYPERION_BINARY=$binary SCRATCH=$folder MASTER_ADDR=127.0.0.1 FAULT='rank=1;point=step.opt;nth=3;action=kill' \
  sbatch --parsable -N2 --ntasks-per-node=1 --gpus-per-node=0 --cpus-per-task=1 --time=5 --output="$folder/job-%j.log" \
  scripts/train.slurm configs/debug_model.toml --allow-faults --training.steps=4 --metrics.log_freq=1 --training.seq_len=128 \
  --training.local_batch_size=1 --checkpoint.enable --checkpoint.interval=1 --job.dump_folder='${SCRATCH}/run-%j')
wait_until "job $job to be requeued" job_restarted "$job"
says_once "$(log_of "$job")" 'rank 1 failed with signal 9 (SIGKILL) on n1'
grep -q "1 other rank lost it: .* of group .* in phase 'step 3" "$(log_of "$job")" || fail "who lost the rank is not in the summary"
says "$(rank_log "$job" 0)" "Network: Gloo on "
if grep -q 'frame #' "$(log_of "$job")" "$(rank_log "$job" 0)"; then fail "stack frames of libtorch"; fi
[ -d "$folder/run-$job/checkpoint/step-2" ] || fail "the dump folder is not $folder/run-$job"
wait_until "job $job to complete" started_now "$job" job_is "$job" COMPLETED
says "$(log_of "$job")" 'Training starts at step 3'
echo "a job whose rank is killed names it once, starts again by itself and ends well"
