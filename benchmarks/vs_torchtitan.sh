#!/usr/bin/env bash
# Hyperion and torchtitan 0.2.2 on this machine's CPU, interleaved.
set -euo pipefail
usage='usage: benchmarks/vs_torchtitan.sh [options of vs_torchtitan.py]
  HYPERION_INTEROP_VENV=FOLDER  Python environment with torchtitan (default .venv-interop; scripts/setup.sh --interop)
  HYPERION_BINARY=FILE          default build/hyperion
A CPU without AVX-512 computes torchtitan in bf16 a hundred times slower (half a minute a step): --steps 6 then.
The options of vs_torchtitan.py:'
case " $* " in *" -h "* | *" --help "*) echo "$usage"; exec python3 "$(dirname "${BASH_SOURCE[0]}")/vs_torchtitan.py" --help ;; esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${HYPERION_INTEROP_VENV:-.venv-interop}
[[ $venv == /* ]] || venv=$root/$venv
binary=${HYPERION_BINARY:-$root/build/hyperion}
[ -x "$venv/bin/python" ] || { echo "vs_torchtitan.sh: no Python environment at $venv: run scripts/setup.sh --interop" >&2; exit 2; }
[ -x "$binary" ] || { echo "vs_torchtitan.sh: $binary does not exist: build first (scripts/setup.sh, then cmake --build build)" >&2; exit 2; }
unset PYTHONDONTWRITEBYTECODE  # the peer starts as it does where it is used, from compiled Python
export PYTHONPYCACHEPREFIX=$venv/bytecode
exec "$venv/bin/python" "$root/benchmarks/vs_torchtitan.py" --binary "$binary" "$@"
