# Starts a SLURM cluster of `cluster_nodes` nodes (2), n0, n1 and so on, on this host, which ends with the script that sources this file; skips that
# script (77) without root or without Debian's slurm-wlm and munge. Sourced, never run. Sets `folder`, a temporary one.
# shellcheck shell=bash
cluster_nodes=${cluster_nodes:-2}
export PATH=$PATH:/usr/sbin:/sbin

skip() { echo "skipped: $*"; exit 77; }
fail() {
  tail -n 30 "$folder"/*.log "$folder/job-${job:-0}.ranks"/*.log 2>/dev/null || true
  echo "FAILED: $*"
  exit 1
}
[ "$(id -u)" = 0 ] || skip "starting SLURM's daemons needs root"
for program in slurmctld slurmd munged srun sbatch scontrol; do
  command -v $program >/dev/null || skip "$program is not installed (apt-get install --no-install-recommends slurm-wlm munge)"
done

folder=$(mktemp -d -t hyperion-slurm-XXXXXX)
stop_cluster() {
  local pid file
  for file in "$folder"/slurmd.n*.pid "$folder"/slurmctld.pid "$folder"/munged.pid; do
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

# wait_until WHAT COMMAND...
wait_until() {
  local end=$((SECONDS + 200))  # far above what any of these takes
  until "${@:2}"; do
    [ $SECONDS -lt $end ] || fail "waited 200 s for $1"
    sleep 0.1
  done
}
# Sockets that do not listen keep the ports for the daemons, which set SO_REUSEADDR too, until this script ends.
coproc python3 -c '
import socket, sys
sockets = [socket.socket() for _ in range(1 + int(sys.argv[1]))]
for s in sockets:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets), flush=True)
sys.stdin.read()' "$cluster_nodes"
read -r -a ports <&"${COPROC[0]}"

# --- a cluster with its own munge ---
chmod 755 "$folder"
mkdir -p "$folder/state"
for ((node = 0; node < cluster_nodes; ++node)); do mkdir "$folder/spool.n$node"; done
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
SlurmctldPort=${ports[0]}
FirstJobId=$(($$ % 9000 + 1))
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmdSpoolDir=$folder/spool.%n
StateSaveLocation=$folder/state
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.%n.log
SlurmctldTimeout=300
SlurmdTimeout=300
MessageTimeout=60
KillWait=5
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
PartitionName=debug Nodes=ALL Default=YES MaxTime=10:00 State=UP
END
for ((node = 0; node < cluster_nodes; ++node)); do
  echo "NodeName=n$node NodeHostname=$host NodeAddr=127.0.0.1 Port=${ports[node + 1]} CPUs=4 State=UNKNOWN" >>"$SLURM_CONF"
done
slurmctld
for ((node = 0; node < cluster_nodes; ++node)); do slurmd -N "n$node"; done
job_field() { scontrol show job "$1" | sed -n "s/.*\b$2=\([^ ]*\).*/\1/p"; }  # JOB NAME
job_is() { [ "$(job_field "$1" JobState)" = "$2" ]; }
nodes_are_idle() { [ "$(sinfo -h -N -o %t 2>/dev/null | grep -c '^idle$')" = "$cluster_nodes" ]; }
wait_until "all nodes to be idle" nodes_are_idle
echo "cluster is up"
