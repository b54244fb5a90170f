#!/usr/bin/env bash
# Runs a Python program of this folder in the interop environment; exits 77 (ctest: skipped) with the reason without one.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=${HYPERION_INTEROP_VENV:-.venv-interop}
[[ $venv == /* ]] || venv=$root/$venv
# Compiled Python is kept, whatever the machine's default is: torchtitan takes 16 s to start without, 6 s with it.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX=$venv/bytecode
if ! "$venv/bin/python" -c 'import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, ("torch", "torchtitan"))))' 2>/dev/null; then
  echo "SKIPPED: no Python with torch and torchtitan at $venv (scripts/setup.sh --interop makes it)"
  exit 77
fi
export HYPERION_TEST_WARM=1  # ranks.py
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}  # all models are small: more threads would wait for each other
program=$1
shift
exec "$venv/bin/python" "$here/$program" "$@"
