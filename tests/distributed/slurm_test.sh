#!/usr/bin/env bash
# A SLURM cluster of two nodes on this host: srun starts our binary as two ranks, and scripts/train.slurm does what it
# should with the exit codes. Skips (77) without root or without Debian's slurm-wlm and munge.
#   usage: slurm_test.sh BINARY
set -euo pipefail
binary=$(readlink -f "${1:?usage: slurm_test.sh BINARY}")
root=$(dirname "$(dirname "$(dirname "$(readlink -f "$0")")")")
export PATH=$PATH:/usr/sbin:/sbin

skip() { echo "skipped: $*"; exit 77; }
fail() {
  echo "FAILED: $*"
  tail -n 30 "$folder"/*.log 2>/dev/null || true
  exit 1
}
[ "$(id -u)" = 0 ] || skip "starting SLURM's daemons needs root"
for program in slurmctld slurmd munged srun sbatch scontrol; do
  command -v $program >/dev/null || skip "$program is not installed (apt-get install --no-install-recommends slurm-wlm munge)"
done

folder=$(mktemp -d -t hyperion-slurm-XXXXXX)
stop_cluster() {
  local pid file
  for file in "$folder"/slurmd.n0.pid "$folder"/slurmd.n1.pid "$folder"/slurmctld.pid "$folder"/munged.pid; do
    [ -s "$file" ] || continue
    pid=$(cat "$file")
    kill "$pid" 2>/dev/null || continue
    for _ in $(seq 100); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.05
    done
    kill -KILL "$pid" 2>/dev/null || true
  done
  rm -rf "$folder"
}
trap stop_cluster EXIT

# wait_until SECONDS WHAT COMMAND...
wait_until() {
  local end=$((SECONDS + $1))
  until "${@:3}"; do
    [ $SECONDS -lt $end ] || fail "waited $1 s for $2"
    sleep 0.1
  done
}
read -r port0 port1 port2 < <(python3 -c '
import socket
sockets = [socket.socket() for _ in range(3)]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))')

# --- a cluster with its own munge ---
chmod 755 "$folder"
mkdir -p "$folder"/{state,spool.n0,spool.n1}
head -c 1024 /dev/urandom >"$folder/munge.key"
chmod 600 "$folder/munge.key"
munged --force --socket="$folder/munge.socket" --key-file="$folder/munge.key" --pid-file="$folder/munged.pid" \
  --log-file="$folder/munged.log" --seed-file="$folder/munge.seed" 2>"$folder/munged.start.log" ||
  fail "munged did not start"
host=$(hostname -s)
export SLURM_CONF=$folder/slurm.conf
cat >"$SLURM_CONF" <<END
ClusterName=hyperion
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmctldPort=$port0
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmdSpoolDir=$folder/spool.%n
StateSaveLocation=$folder/state
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.%n.log
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait=5
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
NodeName=n0 NodeHostname=$host NodeAddr=127.0.0.1 Port=$port1 CPUs=4 State=UNKNOWN
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$port2 CPUs=4 State=UNKNOWN
PartitionName=debug Nodes=n0,n1 Default=YES MaxTime=10:00 State=UP
END
slurmctld
slurmd -N n0
slurmd -N n1
nodes_are_idle() { [ "$(sinfo -h -N -o %t 2>/dev/null | tr '\n' ' ')" = "idle idle " ]; }
wait_until 30 "both nodes to be idle" nodes_are_idle
echo "cluster is up"

# --- our binary, by SLURM's variables ---
export HYPERION_DEVICE=cpu OMP_NUM_THREADS=1
cd "$root"
MASTER_ADDR=127.0.0.1 timeout 90 srun -N2 --ntasks-per-node=1 --kill-on-bad-exit=1 "$binary" train configs/debug_model.toml \
  --training.steps=2 --metrics.log_freq=1 --training.seq_len=128 --training.local_batch_size=1 --job.dump_folder="$folder/dump" >"$folder/srun.log" 2>&1 || fail "srun of the binary"
grep -q 'step: *2 ' "$folder/srun.log" || fail "no line of step 2"
echo "two ranks under srun trained two steps"

# --- scripts/train.slurm, with programs that stand in for the binary ---
submit() {  # STAND-IN: prints the job's number
  printf '#!/bin/sh\n%s\n' "$1" >"$folder/stand_in"
  chmod 755 "$folder/stand_in"
  HYPERION_BINARY=$folder/stand_in HYPERION_ROOT=$root sbatch --parsable -N2 --ntasks-per-node=1 --gpus-per-node=0 \
    --cpus-per-task=1 --time=5 --output="$folder/job-%j.log" scripts/train.slurm some.toml --a.b=c
}
job_field() { scontrol show job "$1" | sed -n "s/.*\b$2=\([^ ]*\).*/\1/p"; }  # JOB NAME
job_is() { [ "$(job_field "$1" JobState)" = "$2" ]; }
job_restarted() { [ "$(job_field "$1" Restarts)" = 1 ]; }

# shellcheck disable=SC2016  # for the job's shell
job=$(submit 'echo "$SLURM_PROCID of $SLURM_NTASKS at $MASTER_ADDR: $*"')
wait_until 30 "job $job to complete" job_is "$job" COMPLETED
grep -qx '1 of 2 at 127.0.0.1: train some.toml --a.b=c' "$folder/job-$job.log" || fail "the ranks were not started as expected"

# shellcheck disable=SC2016
job=$(submit '[ "$SLURM_PROCID" = 0 ] || exit 93; exec sleep 120')
wait_until 60 "job $job to fail" job_is "$job" FAILED
[ "$(job_field "$job" ExitCode)" = 93:0 ] || fail "exit code of a rank with a loss that is not finite: $(job_field "$job" ExitCode)"
[ "$(job_field "$job" Restarts)" = 0 ] || fail "exit code 93 was started again"
echo "exit code 93 ends the job for good"

job=$(submit 'exit 75')
wait_until 30 "job $job to be requeued" job_restarted "$job"
scancel "$job"
echo "exit code 75 starts it again"
