#!/usr/bin/env bash
# Checkpoints, PyTorch's Distributed Checkpoint, and raw input and output, interleaved.
set -euo pipefail
usage='usage: benchmarks/ckpt.sh [PAIRS] [options of ckpt.py]   (default: 7 pairs)
  HYPERION_INTEROP_VENV=FOLDER  Python environment with torch (default .venv-interop; scripts/setup.sh --interop); without one, only ours
  HYPERION_BUILD=FOLDER         where benchmark_checkpoint and benchmark_save_plan are (default build)
The options of ckpt.py:'
case " $* " in *" -h "* | *" --help "*) echo "$usage"; exec python3 "$(dirname "${BASH_SOURCE[0]}")/ckpt.py" --help ;; esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${HYPERION_INTEROP_VENV:-.venv-interop}
[[ $venv == /* ]] || venv=$root/$venv
build=${HYPERION_BUILD:-$root/build}
[ -x "$build/benchmark_checkpoint" ] || { echo "ckpt.sh: $build/benchmark_checkpoint does not exist: build first (scripts/setup.sh, then cmake --build build)" >&2; exit 2; }
pairs=()
if [[ ${1:-} =~ ^[0-9]+$ ]]; then pairs=(--pairs "$1"); shift; fi
peer=()
if "$venv/bin/python" -c 'import torch' 2>/dev/null; then peer=(--peer-python "$venv/bin/python"); fi
unset PYTHONDONTWRITEBYTECODE  # the peer starts as it does where it is used, from compiled Python
export PYTHONPYCACHEPREFIX=$venv/bytecode
exec python3 "$root/benchmarks/ckpt.py" --build "$build" "${pairs[@]}" "${peer[@]}" "$@"
