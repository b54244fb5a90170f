#!/usr/bin/env bash
# Trains on this host: sets up and builds what is missing, then starts NPROC ranks (scripts/launch.py).
set -euo pipefail
trap '' USR1  # SLURM's warning ends nothing before the launcher answers it
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/train.sh FILE.toml [--section.key=value ...]
  NPROC=N              ranks on this host; default: the GPUs present, else 1
  NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT   several hosts: run it on each (docs/cluster.md)
  LOG_RANK=0,3         the ranks whose output is shown; default 0
  HYPERION_DEVICE=cpu  train on the CPU even where there is a GPU
The options of a training are listed by: build/hyperion train --help'
case ${1:-} in
  '') fail "no configuration file given" "$usage" ;;
  -h | --help) echo "$usage"; exit 0 ;;
esac

if [ -n "${HYPERION_BINARY:-}" ]; then  # a binary from elsewhere, or one that stands in for it in a test
  binary=$HYPERION_BINARY
elif [ -e "$root/BUNDLE" ]; then  # unpacked from scripts/package.sh: nothing to build
  bundle=$root
  # shellcheck source=scripts/bundle_environment.sh
  . "$root/scripts/bundle_environment.sh"
  binary=$root/hyperion
else
  "$root/scripts/setup.sh"
  "$root/scripts/build.sh" hyperion
  binary=$root/build/hyperion
fi
exec "${HYPERION_PYTHON:-python3}" "$root/scripts/launch.py" "$binary" train "$@"
