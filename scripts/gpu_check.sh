#!/usr/bin/env bash
# Everything of Hyperion that needs a GPU, from the source tree or from a bundle, in under ten minutes, without a network:
# tests, training on one and on all GPUs (NCCL), benchmarks. Prints a table, writes gpu_check.json.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/gpu_check.sh [--json FILE]   exit code: 0 all passed, 1 something failed, 2 no GPU'
help_for "$usage" "$@"
gpu_present || fail "there is no GPU on this host (no /dev/nvidia*, and nvidia-smi lists none)" "run it where there is one"
if [ -e "$root/BUNDLE" ]; then
  bundle=$root
  # shellcheck source=scripts/bundle_environment.sh
  . "$root/scripts/bundle_environment.sh"
else
  "$root/scripts/setup.sh"
  "$root/scripts/build.sh"
fi
exec "${HYPERION_PYTHON:-python3}" "$root/scripts/gpu_check.py" --root "$root" "$@"
