#!/usr/bin/env bash
# A SLURM cluster of three nodes on this host: a job of scripts/train.slurm on two of them, whose spare third one replaces a node whose
# rank is killed, or that SLURM loses. Skips (77) without root or without Debian's slurm-wlm and munge.
#   usage: slurm_spare_test.sh BINARY
set -euo pipefail
binary=$(readlink -f "${1:?usage: slurm_spare_test.sh BINARY}")
root=$(dirname "$(dirname "$(dirname "$(readlink -f "$0")")")")
cluster_nodes=3
# shellcheck source=tests/distributed/slurm_cluster.sh
. "$root/tests/distributed/slurm_cluster.sh"
export HYPERION_DEVICE=cpu OMP_NUM_THREADS=1
cd "$root"

submit() {  # PROGRAM [WORD...]: prints the number of a job on three nodes, of which one is spare
  HYPERION_SPARE_NODES=1 HYPERION_KILL_SECONDS=5 HYPERION_BINARY=$1 HYPERION_ROOT=$root sbatch --parsable --no-kill -N3 --ntasks-per-node=1 --gpus-per-node=0 \
    --cpus-per-task=1 --time=5 --output="$folder/job-%j.log" scripts/train.slurm "${@:2}"
}
stand_in() {  # SCRIPT: prints the path of a program that stands in for the binary
  printf '#!/bin/sh\n%s\n' "$1" >"$folder/stand_in"
  chmod 755 "$folder/stand_in"
  echo "$folder/stand_in"
}
says() { grep -qF -- "$2" "$1" || fail "$1 does not say: $2"; }  # FILE TEXT
log_of() { echo "$folder/job-$1.log"; }  # JOB
never_requeued() { [ "$(job_field "$1" Restarts)" = 0 ] || fail "job $1 went through the queue again"; }

# The stand-in takes rank 0's part, too: the file that tells how far this start has come. Start 0.1 is the first one in place.
# shellcheck disable=SC2016  # for the job's shell
progress='[ "$SLURM_PROCID" != 0 ] || echo 5 8 >"$HYPERION_PROGRESS_FILE"; case $HYPERION_FAILURE_DIR in *start-0) first=yes ;; *) first= ;; esac;
  echo "rank $SLURM_PROCID of $SLURM_NTASKS in ${HYPERION_FAILURE_DIR##*/}";'
# shellcheck disable=SC2016
job=$(submit "$(stand_in "$progress"' if [ -n "$first" ]; then [ "$SLURM_PROCID" = 0 ] || kill -KILL $$; exec sleep 120; fi')" some.toml)
wait_until "job $job to complete" job_is "$job" COMPLETED
says "$(log_of "$job")" 'trains on n0 n1; 1 of 3 nodes are spare'
says "$(log_of "$job")" 'failed with exit code 137 on n1'
says "$(log_of "$job")" 'starting again in place after step 8 (restart 1 of at most 50), without n1'
says "$(log_of "$job")" 'trains on n0 n2; 0 of 3 nodes are spare'
says "$folder/job-$job.ranks/rank_1.n2.log" 'rank 1 of 2 in start-0.1'
never_requeued "$job"
echo "the spare node replaces one whose rank is killed, without a new wait in the queue"

# shellcheck disable=SC2016
job=$(submit "$(stand_in "$progress"' if [ -n "$first" ]; then touch "$HYPERION_LOG_DIR/ready$SLURM_PROCID"; exec sleep 200; fi')" some.toml)
wait_until "rank 0 of job $job" test -e "$folder/job-$job.ranks/ready0"
wait_until "rank 1 of job $job" test -e "$folder/job-$job.ranks/ready1"
scontrol update NodeName=n1 State=DOWN Reason=lost
wait_until "job $job to complete" job_is "$job" COMPLETED
says "$(log_of "$job")" 'starting again in place after step 8 (restart 1 of at most 50), without n1'
says "$(log_of "$job")" 'trains on n0 n2; 0 of 3 nodes are spare'
never_requeued "$job"
scontrol update NodeName=n1 State=RESUME 2>"$folder/update.err" || true  # it may have come back by itself
wait_until "all nodes to be idle" nodes_are_idle
echo "so does it for a node that SLURM has lost"

# shellcheck disable=SC2016
job=$(submit "$(stand_in "$progress"' [ "$SLURM_PROCID" = 0 ] || kill -KILL $$; exec sleep 120')" some.toml)
job_restarted() { [ "$(job_field "$1" Restarts)" -ge 1 ]; }
wait_until "job $job to be requeued" job_restarted "$job"
says "$(log_of "$job")" 'no spare node is left to replace n1 n2'
says "$(log_of "$job")" 'starting again after step 8 (restart 2 of at most 50)'
scancel "$job"
# shellcheck disable=SC2016
job=$(HYPERION_MAX_RESTARTS=1 submit "$(stand_in "$progress"' [ "$SLURM_PROCID" = 0 ] || kill -KILL $$; exec sleep 120')" some.toml)
wait_until "job $job to fail" job_is "$job" FAILED
says "$(log_of "$job")" 'not started again: it has been, 1 times (HYPERION_MAX_RESTARTS=1)'
echo "without a spare node the job waits in the queue as any other, and each start counts"

# --- the binary: its rank on n1 is killed in step 3, and the run ends with the losses of one that nothing disturbed ---
train() {  # NAME [VARIABLE=VALUE...]
  env "${@:2}" HYPERION_BINARY="$binary" HYPERION_ROOT="$root" sbatch --parsable --no-kill -N3 --ntasks-per-node=1 --gpus-per-node=0 --cpus-per-task=1 --time=5 \
    --output="$folder/job-%j.log" scripts/train.slurm configs/debug_model.toml --allow-faults --training.steps=4 --metrics.log_freq=1 --training.seq_len=64 \
    --training.local_batch_size=1 --checkpoint.enable --checkpoint.interval=1 --debug.seed=1 --job.dump_folder="$folder/$1" --metrics.enable_jsonl
}
losses() {  # NAME: step and loss of every step, of one that was made twice the later one
  python3 -c 'import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
for step, loss in sorted({line["step"]: line["loss_metrics/global_avg_loss"] for line in lines if "grad_norm" in line}.items()): print(step, loss)' \
    "$folder/$1/metrics.jsonl"
}
for name in undisturbed disturbed; do
  if [ $name = disturbed ]; then fault='rank=1;point=step.opt;nth=3;action=kill'; else fault=; fi
  job=$(train $name HYPERION_SPARE_NODES=1 FAULT="$fault")
  wait_until "job $job to complete" job_is "$job" COMPLETED
done
says "$(log_of "$job")" 'rank 1 failed with signal 9 (SIGKILL) on n1'
says "$(log_of "$job")" 'Training starts at step 3'
never_requeued "$job"
[ "$(losses undisturbed)" = "$(losses disturbed)" ] || fail "losses differ: $(losses undisturbed) against $(losses disturbed)"
[ "$(losses disturbed | wc -l)" = 4 ] || fail "these are not the losses of 4 steps: $(losses disturbed)"
echo "a run that goes on with the spare node has the losses of one that nothing disturbed"
