#!/usr/bin/env bash
# Sets up, builds and runs the tests; ends with ctest's summary and its exit code.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/test.sh [-L LABEL] [-R NAME] [ctest options]
  Runs what a change breaks first: the unit tests, and of the rest a case for each promise (tests/default.txt; about 4 minutes on two cores).
  CI=true                everything but the label slow (about 15 minutes on two cores)
  -L LABEL, -R NAME      all of them but those of label slow; so do -I and --rerun-failed. -L slow: those of label slow
  labels: unit, docs, distributed, interop, faults, simulated, float8, gpu, slow
  Tests of the label interop need Python packages of their own: they are set up where CI=true or the label is asked for
  (HYPERION_NO_INTEROP=1: never), and skip elsewhere.
  HYPERION_PRESET=asan   tests a build of that preset; HYPERION_TEST_JOBS=N   tests at once, default 3 (many wait)'
help_for "$usage" "$@"
preset=${HYPERION_PRESET:-release}
build=$root/build
[ "$preset" = release ] || build=$root/build-$preset

all=(-LE '^slow$')
selection=("${all[@]}" -R "$(sed '/^#/d; /^$/d; s/.*/^&$/' "$root/tests/default.txt" | paste -sd '|')")
setup=()
[ "${CI:-}" != true ] || { selection=("${all[@]}") setup=(--interop); }
for argument in "$@"; do
  case $argument in -L* | -R* | -I* | --label-regex* | --tests-regex* | --tests-information* | --rerun-failed) selection=("${all[@]}") ;; esac
done
case " $* " in
  *interop* | *float8* | *slow*) setup=(--interop) ;;&
  *slow*) selection=() ;;
esac
[ "${HYPERION_NO_INTEROP:-0}" != 1 ] || setup=()

"$root/scripts/setup.sh" "${setup[@]}"
"$root/scripts/build.sh" --preset "$preset"

status=0
ctest --test-dir "$build" --output-on-failure --no-tests=error -j "${HYPERION_TEST_JOBS:-3}" "${selection[@]}" "$@" |
  python3 "$root/tests/explain_failures.py" "$build" || status=$?
if [[ " ${selection[*]} " == *" -R "* ]]; then
  count() { ctest --test-dir "$build" -N "$@" | sed -n 's/^Total Tests: //p'; }
  echo "CI=true scripts/test.sh runs $(($(count "${all[@]}") - $(count "${selection[@]}"))) more tests, in about 10 minutes on two cores"
fi
exit $status
