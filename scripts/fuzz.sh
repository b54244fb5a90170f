#!/usr/bin/env bash
# Feeds mutated input to the readers of outside data, under sanitizers (tests/fuzz). A finding ends it with a failure and
# leaves the input as a file crash-* in the build folder.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/fuzz.sh SECONDSs|RUNS [TARGET...]
  scripts/fuzz.sh 60s               every target for a minute
  scripts/fuzz.sh 10000000 pickle   ten million inputs to one target
  HYPERION_BUILD=FOLDER        where the fuzz_* programs are; default build
  HYPERION_FUZZ_LENGTH=BYTES   no input is longer; default 65536. Short inputs are many times faster'
help_for "$usage" "$@"
case ${1:-} in
  [0-9]*s) limit=-max_total_time=${1%s} ;;
  [0-9]*) limit=-runs=$1 ;;
  *) fail "no limit given" "$usage" ;;
esac
shift
build=${HYPERION_BUILD:-$root/build}
if [ $# = 0 ]; then
  for program in "$build"/fuzz_*; do [ ! -x "$program" ] || [ -d "$program" ] || set -- "$@" "${program##*/fuzz_}"; done
fi
[ $# -gt 0 ] || fail "there are no fuzz programs in $build" "build them: scripts/build.sh"

corpus=$(mktemp -d)
trap 'rm -rf "$corpus"' EXIT
for target in "$@"; do
  [ -x "$build/fuzz_$target" ] || fail "there is no program $build/fuzz_$target" "build it: ninja -C $build fuzz_$target"
  mkdir -p "$corpus/$target" "$corpus/seeds/$target"
  tar -xzf "$root/tests/goldens/fuzz/$target.tar.gz" -C "$corpus/seeds/$target"
  say "$target: $limit"
  # A slow or memory-hungry input is a finding too.
  (cd "$build" && "./fuzz_$target" "$limit" "-max_len=${HYPERION_FUZZ_LENGTH:-65536}" -timeout=10 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
    -artifact_prefix="crash-$target-" "$corpus/$target" "$corpus/seeds/$target")
done
