# Shared by the scripts of this folder: paths and messages. Sourced, never run.
# shellcheck shell=bash

root=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")  # the source tree, or the unpacked bundle
setup_state=$root/build/setup                                     # what scripts/setup.sh left for the others

say() { printf '[%s] %s\n' "${0##*/}" "$*" >&2; }

# fail PROBLEM REMEDY: one message, exit code 2 (docs/exit_codes.md: usage or environment). PROBLEM may hold a variable's value.
fail() {
  printf '[%s] %s\n  remedy: %s\n' "${0##*/}" "${1//[[:cntrl:]]/?}" "$2" >&2
  exit 2
}

# help_for USAGE ARGUMENT...: prints it and exits 0 when one of the arguments asks for help.
help_for() {
  local usage=$1 argument
  shift
  for argument in "$@"; do
    case $argument in -h | --help) echo "$usage"; exit 0 ;; esac
  done
}

# retry COMMAND...: up to three tries, for downloads.
retry() {
  local try
  for try in 1 2 3; do
    "$@" && return 0
    [ "$try" -lt 3 ] && say "that failed (try $try of 3); again in $((try * 3)) s" && sleep $((try * 3))
  done
  return 1
}

# one_at_a_time NAME FUNCTION: runs it under a lock that a second run of the script waits for.
one_at_a_time() {
  mkdir -p "$root/build"
  exec 9>"$root/build/$1.lock"
  if ! flock --nonblock 9; then
    say "another run is busy with this; waiting for it"
    flock --timeout 3600 9 || fail "waited an hour for $root/build/$1.lock" "end the process that holds it"
  fi
  "$2"
  exec 9>&-
}

# What scripts/setup.sh found: `torch` (its folder) or `cuda_home` (empty: no CUDA compiler).
setup_result() { [ ! -e "$setup_state" ] || sed -n "s/^$1 //p" "$setup_state"; }

gpu_present() {
  compgen -G '/dev/nvidia[0-9]*' >/dev/null || { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep '^GPU' >/dev/null; }
}
