#!/usr/bin/env bash
# Sets up, builds and runs the tests; ends with ctest's summary and its exit code.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/test.sh [-L LABEL] [ctest options]
  labels: unit, distributed, interop, faults, float8, gpu, slow. Default: all but slow.
  Tests of the label interop need Python packages of their own: they are set up where CI=true or the label is asked for
  (HYPERION_NO_INTEROP=1: never), and skip elsewhere.
  HYPERION_PRESET=asan   tests a build of that preset; HYPERION_TEST_JOBS=N   tests at once, default 2'
help_for "$usage" "$@"
preset=${HYPERION_PRESET:-release}
build=$root/build
[ "$preset" = release ] || build=$root/build-$preset

setup=() selection=(-LE '^slow$')
[ "${CI:-}" != true ] || setup=(--interop)
case " $* " in
  *interop* | *float8* | *slow*) setup=(--interop) ;;&
  *slow*) selection=() ;;
esac
[ "${HYPERION_NO_INTEROP:-0}" != 1 ] || setup=()

"$root/scripts/setup.sh" "${setup[@]}"
"$root/scripts/build.sh" --preset "$preset"

# ctest's summary is held back until the slowest tests have been printed, so that it closes the output. A line of a test:
#  12/345 Test  #12: base.Philox is reproducible .....   Passed    0.01 sec
ctest --test-dir "$build" --output-on-failure --no-tests=error -j "${HYPERION_TEST_JOBS:-2}" "${selection[@]}" "$@" | awk '
  !summary && /^[0-9]+% tests passed/ { summary = 1 }
  summary { held[++lines] = $0; next }
  { print; fflush() }
  match($0, /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: /) && $NF == "sec" {
    name = substr($0, RLENGTH + 1)
    sub(/ \.*[ *]*(Passed|Failed|Skipped|Timeout|Exception|Not Run|.*Exception:).*$/, "", name)
    seconds[++count] = $(NF - 1); names[count] = name
  }
  END {
    if (count) print "\nThe slowest tests:"
    for (shown = 0; shown < 10 && shown < count; ++shown) {
      best = 0
      for (i = 1; i <= count; ++i) if (!(i in done) && (!best || seconds[i] + 0 > seconds[best] + 0)) best = i
      done[best] = 1
      printf "  %8.2f s  %s\n", seconds[best], names[best]
    }
    if (lines) print ""
    for (i = 1; i <= lines; ++i) print held[i]
  }'
