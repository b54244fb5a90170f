#!/usr/bin/env bash
# Checks the source: include rules, lengths and layout of files, and clang-tidy on every source file of the program.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/lint.sh [--quick | --since COMMIT]
  --quick  without clang-tidy, which takes some eleven minutes of two cores for everything, and a few seconds for each file
           that is as it was when nothing was found in it
  --since COMMIT  clang-tidy reads only what a change since then touches
  needs clang-format of version 14 and clang-tidy of version 16 (Debian: apt-get install clang-format-14 clang-tidy-16); without one
  of them its part is skipped, and said so'
help_for "$usage" "$@"
cd "$root"
tidy=true since=()
case ${1:-} in
  '') ;;
  --quick) tidy=false ;;
  --since) since=(${2:?"$usage"}) ;;
  *) fail "unknown argument '$1'" "$usage" ;;
esac
status=0

# Prints the first of the programs that is of the version; says that there is none otherwise.
find_version() {  # VERSION PROGRAM...
  local version=$1 program
  shift
  for program in "$@"; do
    if [[ $("$program" --version 2>/dev/null) == *"version $version."* ]]; then echo "$program"; return; fi
  done
  say "skipped: there is no $1 (Debian: apt-get install $1)" >&2
}

say "include rules"
python3 tests/include_rules.py "$root" || status=1

say "no source file has more than 500 lines, includes not counted"
git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' '*.def' '*.py' '*.sh' '*.slurm' '*.cmake' '*CMakeLists.txt' | xargs -d '\n' grep -cv '^#include' |
  awk -F: '$2 > 500 { print "  " $1 " has " $2; long = 1 } END { exit long }' || status=1

# The order of includes is not checked: Catch's must follow libtorch's, for both define CHECK.
clang_format=$(find_version 14 clang-format-14 clang-format)
if [ -n "$clang_format" ]; then
  say "layout of all files"
  git ls-files '*.cpp' '*.h' '*.cu' '*.cuh' | xargs "$clang_format" --sort-includes=0 --dry-run -Werror || status=1
fi

# The files of a library are read as one (CMake's unity build): libtorch's headers, which are nearly all of the work, once per library
# instead of once per file. Kernels, what needs flags of its own and what is compiled alone are read file by file.
if $tidy; then clang_tidy=$(find_version 16 clang-tidy-16 clang-tidy); else clang_tidy=''; fi
if [ -n "$clang_tidy" ]; then
  torch=$(setup_result torch) cuda_home=$(setup_result cuda_home)
  [ -n "$torch" ] || fail "Hyperion is not set up" "run scripts/setup.sh"
  # without precompiled headers: clang cannot read those of gcc
  CUDA_HOME=$cuda_home cmake -S . -B build/lint -G Ninja -DHYPERION_PCH=OFF -DHYPERION_TORCH="$torch" -DCMAKE_UNITY_BUILD=ON \
    -DCMAKE_UNITY_BUILD_BATCH_SIZE=0 >build/lint.log || fail "CMake could not configure the build (its messages are above)" "see build/lint.log"
  say "clang-tidy"
  python3 tests/clang_tidy.py "$clang_tidy" "$root" build/lint "${since[@]}" || status=1
fi
[ $status = 0 ] || fail "the checks found what is above" "mend it; for layout: clang-format --sort-includes=0 -i FILE"
