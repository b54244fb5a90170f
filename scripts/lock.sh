#!/usr/bin/env bash
# Writes the lock files of scripts/requirements again: what each NAME.in asks for, with the version and hashes of every package.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/lock.sh [uv options]   needs uv (from pip, in a virtual environment)
  Locked versions stay unless NAME.in asks for others; --upgrade takes newer ones where NAME.in leaves the choice'
help_for "$usage" "$@"
command -v uv >/dev/null || fail "uv is not installed" "python3 -m venv $root/build/uv && $root/build/uv/bin/pip install uv && PATH=$root/build/uv/bin:\$PATH scripts/lock.sh"
export UV_CUSTOM_COMPILE_COMMAND=scripts/lock.sh

lock() {  # NAME LOWEST_PYTHON UV_OPTION...
  uv pip compile --quiet --universal --generate-hashes --no-annotate --python-version "$2" "${@:3}" "$1.in" --output-file "$1.lock"
}
cd "$root/scripts/requirements"
lock torch-cpu 3.10 --no-deps "$@"
lock torch-toolkit 3.10 --no-deps "$@"
lock torch-cuda 3.10 "$@"
lock torch-aarch64 3.10 --no-deps "$@"
lock arrow 3.11 --no-deps "$@"
lock interop 3.11 --no-deps "$@"
lock release 3.10 "$@"
