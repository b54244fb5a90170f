#!/usr/bin/env bash
# Sets up, builds and runs the tests; ends with ctest's summary and its exit code.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/test.sh [-L LABEL] [ctest options]
  labels: unit, distributed, interop, faults, float8, gpu, slow. Default: all but slow.
  Tests of the label interop need Python packages of their own: they are set up where CI=true or the label is asked for
  (HYPERION_NO_INTEROP=1: never), and skip elsewhere.
  HYPERION_PRESET=asan   tests a build of that preset; HYPERION_TEST_JOBS=N   tests at once, default 3 (many wait)'
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

ctest --test-dir "$build" --output-on-failure --no-tests=error -j "${HYPERION_TEST_JOBS:-3}" "${selection[@]}" "$@" |
  python3 "$root/tests/explain_failures.py" "$build"
