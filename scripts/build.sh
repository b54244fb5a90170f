#!/usr/bin/env bash
# Configures and builds; a run with nothing to do takes a fraction of a second. scripts/setup.sh must have run.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/build.sh [--preset release|debug|asan|tsan|aarch64] [TARGET...]   (default: release, everything)
  aarch64 is cross-compiled, with what scripts/setup_aarch64.sh has set up
  HYPERION_JOBS=N  compiler processes at once; default: as many as cores and free memory allow
  HYPERION_CUDA=AUTO|ON|OFF  compile the CUDA code; AUTO: when scripts/setup.sh found a CUDA compiler, and for the
                             target hyperion alone only where there is a GPU'
help_for "$usage" "$@"
preset=release
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=${2:?"$usage"}; shift 2 ;;
    -*) fail "unknown option '$1'" "$usage" ;;
    *) break ;;
  esac
done
targets=("${@:-all}")
build=$root/build
[ "$preset" = release ] || build=$root/build-$preset

torch=$(setup_result torch) arrow=$(setup_result arrow) cuda_home=$(setup_result cuda_home)
if [ "$preset" = aarch64 ]; then
  torch=$build/torch/torch arrow=$build/torch/pyarrow
  [ -d "$torch" ] || fail "there is no torch for aarch64" "run scripts/setup_aarch64.sh"
fi
[ -n "$torch" ] || fail "Hyperion is not set up" "run scripts/setup.sh"
cuda=${HYPERION_CUDA:-AUTO}
if [ -n "$cuda_home" ]; then export CUDA_HOME=$cuda_home; elif [ "$cuda" = AUTO ]; then cuda=OFF; fi
# The program loads our CUDA library at run time, so that training on a CPU needs none.
needs_cuda() { [ "$preset" != aarch64 ] && { [ "$cuda" = ON ] || { [ "$cuda" = AUTO ] && gpu_present; }; }; }
case " ${targets[*]} " in *" hyperion "*) ! needs_cuda || targets+=(hyperion_on_gpu) ;; esac

# Thirty-two files that include libtorch take up to 1.8 GB to compile together.
jobs() {
  local cores available limit
  cores=$(nproc)
  available=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  [ "$limit" = max ] || [ $((limit >> 20)) -ge "$available" ] || available=$((limit >> 20))
  local fitting=$((available / 2000))
  echo $((fitting < 1 ? 1 : fitting < cores ? fitting : cores))
}

configure() {
  local settings="$preset $torch $arrow $cuda $cuda_home"
  [ ! -e "$build/build.ninja" ] || [ "$(cat "$build/settings" 2>/dev/null)" != "$settings" ] || return 0
  say "configuring ${build##*/}/ (preset $preset; libtorch at $torch; CUDA compiler: ${cuda_home:-none})"
  mkdir -p "$build"
  # settings from an earlier configuration, as another libtorch or CUDA compiler, must not stay in the cache
  (cd "$root" && cmake --fresh --preset "$preset" -DHYPERION_TORCH="$torch" -DHYPERION_ARROW="$arrow" -DHYPERION_CUDA="$cuda") >"$build/configure.log" 2>&1 || {
    tail -n 20 "$build/configure.log" >&2
    fail "CMake could not configure the build (its last lines are above)" "see $build/configure.log; scripts/setup.sh installs what it looks for"
  }
  echo "$settings" >"$build/settings"
}

compile() {
  (cd "$build" && NINJA_STATUS="[build.sh] %f/%t " ninja -j "${HYPERION_JOBS:-$(jobs)}" "${targets[@]}" >&2) ||
    fail "the build failed (see above)" "mend what the compiler names, then: scripts/build.sh"
}

build_all() {
  configure
  compile
}
one_at_a_time "${build##*/}" build_all
