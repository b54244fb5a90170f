#!/usr/bin/env bash
# Everything of Hyperion that needs a GPU, from the source tree or from a bundle, without a network: part 0 the first hour on a card (NCCL,
# experts, rings, pipelines), part 1 other kernels and 8B, part 2 speed, part 3 the rest, each in under ten minutes. Prints a table and writes
# a report, which is complete at any moment.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/gpu_check.sh [--part 0|1|2|3|all] [--only NAME] [--budget SECONDS] [--json FILE] [--peer FOLDER] [--small] [--list]
exit code: 0 all passed, 1 something failed or was not run, 2 no GPU, 128 + signal when TERM or INT came (docs/install.md)'
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
