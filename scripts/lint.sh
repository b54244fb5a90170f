#!/usr/bin/env bash
# Checks the source: include rules and layout of every file, clang-tidy on the files that changed.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/lint.sh [--base COMMIT | --all | --minutes N]
  --base COMMIT  clang-tidy reads the files changed since COMMIT; default: where the branch left main, on main itself its last commit
  --all          clang-tidy reads every file: an hour of two cores
  --minutes N    clang-tidy reads files for N minutes, those that were changed last first
  clang-format and clang-tidy of version 14 (Debian: apt-get install clang-format clang-tidy); without one of them its part is
  skipped, and said so'
help_for "$usage" "$@"
cd "$root"
base='' all=false minutes=''
case ${1:-} in
  '') ;;
  --base) base=${2:?"$usage"} ;;
  --all) all=true ;;
  --minutes) minutes=${2:?"$usage"} ;;
  *) fail "unknown argument '$1'" "$usage" ;;
esac
status=0

has_version_14() {  # PROGRAM
  [[ $("$1" --version 2>/dev/null) == *"version 14."* ]] || { say "skipped: there is no $1 14 (Debian: apt-get install $1)"; return 1; }
}

say "include rules"
python3 tests/include_rules.py "$root" || status=1

# The order of includes is not checked: Catch's must follow libtorch's, for both define CHECK.
if has_version_14 clang-format; then
  say "layout of all files"
  git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' | xargs clang-format --sort-includes=0 --dry-run -Werror || status=1
fi

default_base() {
  local main
  main=$(git rev-parse --verify --quiet main || git rev-parse --verify --quiet origin/main || git rev-parse HEAD)
  if [ "$main" = "$(git rev-parse HEAD)" ]; then git rev-parse --verify --quiet HEAD^ || echo HEAD; else git merge-base "$main" HEAD; fi
}

# A header is read with the source file of its name.
files_to_read() {
  local folders=(base checkpoint models parallel trainer)
  if $all; then
    git ls-files "${folders[@]}"
  elif [ -n "$minutes" ]; then
    git log --format= --name-only -- "${folders[@]}"
  else
    git diff --name-only --diff-filter=d "${base:-$(default_base)}" -- "${folders[@]}"
  fi | sed -n 's/\.\(cpp\|h\)$/.cpp/p' | awk '!seen[$0]++' | while IFS= read -r file; do if [ -e "$file" ]; then echo "$file"; fi; done
}

if has_version_14 clang-tidy; then
  mapfile -t files < <(files_to_read)
  say "clang-tidy on ${#files[@]} files"
  if [ ${#files[@]} -gt 0 ]; then
    torch=$(setup_result torch) cuda_home=$(setup_result cuda_home)
    [ -n "$torch" ] || fail "Hyperion is not set up" "run scripts/setup.sh"
    # clang cannot read the precompiled headers of gcc, so it gets compile commands without
    CUDA_HOME=$cuda_home cmake -S . -B build/lint -G Ninja -DHYPERION_PCH=OFF -DHYPERION_TORCH="$torch" >build/lint.log ||
      fail "CMake could not configure the build (its messages are above)" "see build/lint.log"
    end=$((minutes ? SECONDS + 60 * minutes : 1000000)) read_files=0
    while [ $read_files -lt ${#files[@]} ] && [ $SECONDS -lt $end ]; do  # as many at once as there are cores
      printf '%s\0' "${files[@]:read_files:$(nproc)}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p build/lint || status=1
      read_files=$((read_files + $(nproc)))
    done
    [ $read_files -ge ${#files[@]} ] || say "clang-tidy read the $read_files that were changed last, for $minutes minutes"
  fi
fi
[ $status = 0 ] || fail "the checks found what is above" "mend it; for layout: clang-format --sort-includes=0 -i FILE"
