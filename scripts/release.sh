#!/usr/bin/env bash
# Makes the files of a release from a clean clone of HEAD: wheels for x86-64 and aarch64, the archive, a list of what is linked (SBOM) and
# checksums; the same bytes from the same commit and tools. Publishes nothing. See docs/notes/release.md.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/release.sh VERSION [--into FOLDER]
  VERSION  as CMakeLists.txt declares it, such as 0.1.0; CHANGELOG.md must have a section for it
  --into   the folder of the files, which must be empty or missing; default: dist/VERSION, emptied if it is there
  HYPERION_RELEASE_CLONE=FOLDER  where the clone is built; default: /tmp/hyperion-release. It is made and removed
  Compiles everything once for each processor, without a compile cache in 20 to 30 minutes of two cores.'
help_for "$usage" "$@"
version='' into=''
while [ $# -gt 0 ]; do
  case $1 in
    --into) into=${2:?"$usage"}; shift ;;
    -*) fail "unknown option '$1'" "$usage" ;;
    *) [ -z "$version" ] || fail "a second version, '$1'" "$usage"; version=$1 ;;
  esac
  shift
done

# --- what must be right before anything is built ----------------------------------------------------------------------
[ -n "$version" ] || fail "no version is named" "$usage"
[[ $version =~ ^(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*)){2}$ ]] || fail "'$version' is not a version" "three numbers, such as 0.1.0"
declared=$(sed -n 's/^project(hyperion VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
[ "$version" = "$declared" ] || fail "CMakeLists.txt declares version $declared, not $version" "change it there: project(hyperion VERSION ...)"
commit=$(git -C "$root" rev-parse --verify --quiet HEAD 2>/dev/null) || fail "$root is no git repository with a commit" "clone Hyperion with git"
changes=$(git -C "$root" status --porcelain | head -n 5)
[ -z "$changes" ] || fail "files differ from the commit: ${changes//$'\n'/, }" "commit, stash or remove them"
notes() {  # FILE: those of the version
  awk -v heading="## $version" '/^## / { inside = ($0 == heading || index($0, heading " ") == 1); next } inside' "$1"
}
notes "$root/CHANGELOG.md" | grep '[^[:space:]]' >/dev/null ||
  fail "CHANGELOG.md has no section '## $version' with notes" "move what is under '## Unreleased' there"
if [ -n "$into" ] && [ -n "$(ls -A -- "$into" 2>/dev/null)" ]; then fail "--into $into is not empty" "name a folder that is empty, or does not exist"; fi
[ "$(uname -m)" = x86_64 ] || fail "this machine is $(uname -m)" "make releases on x86-64, which compiles for aarch64 too"
torch=$(setup_result torch)
[ -e "$torch/lib/libtorch_cpu.so" ] || fail "Hyperion is not set up" "run scripts/setup.sh"

# --- a clone, at the same path where none is named ---------------------------------------------------------------------
# Compilers write no path of it into what they make (-ffile-prefix-map, and none of where a link leads), nor does the linker
# (CMAKE_BUILD_RPATH_USE_ORIGIN); but a compile cache finds only what was compiled at the same path.
clone=${HYPERION_RELEASE_CLONE:-/tmp/hyperion-release}
umask 022
mkdir "$clone" 2>/dev/null || fail "$clone is there, or cannot be made" "wait for the other release, or remove what one that was ended has left"
trap 'rm -rf "$clone"' EXIT
git clone --quiet --no-local --no-tags "$root" "$clone"
[ "$(git -C "$clone" rev-parse HEAD)" = "$commit" ] || fail "the clone has another commit than $commit" "see git log in $clone"
SOURCE_DATE_EPOCH=$(git -C "$clone" log -1 --format=%ct)
export SOURCE_DATE_EPOCH CXXFLAGS="-ffile-prefix-map=$clone/= -fno-canonical-system-headers" TZ=UTC LC_ALL=C.UTF-8

# What was downloaded before is used; it is pinned by hash (torch) or of this Debian.
"$root/scripts/setup_aarch64.sh"
mkdir -p "$clone"/{build,build-aarch64}
ln -s "$(dirname "$torch")" "$clone/build/python"
ln -s "$root"/build-aarch64/{sysroot,torch} "$clone/build-aarch64/"
HYPERION_TORCH=$clone/build/python/${torch##*/} "$clone/scripts/setup.sh"

# --- programs, packages -----------------------------------------------------------------------------------------------
files=$clone/dist
"$clone/scripts/package.sh"
"$clone/scripts/package.sh" --wheel --no-build
"$clone/scripts/package.sh" --wheel --arch aarch64
said=$("$clone/build/hyperion" --version)
say "${said//$'\n'/, }"
[[ $said == "hyperion $version ($commit)"$'\n'"compiler GNU "*$'\n'"libtorch 2.11."* ]] ||
  fail "hyperion --version is not of version $version, commit $commit, GCC and libtorch 2.11" "see above"

# --- what is in them, and checksums -----------------------------------------------------------------------------------
"${HYPERION_PYTHON:-python3}" -m venv "$clone/build/sbom"
retry "$clone/build/sbom/bin/python" -m pip install --quiet --require-hashes -r "$clone/scripts/requirements/release.lock" >&2 ||
  fail "pip could not install scripts/requirements/release.lock" "check the network and pip's settings"
[ -n "$into" ] || { into=$root/dist/$version && rm -rf "$into"; }
mkdir -p "$into"
cp "$files"/*.whl "$files"/*.tar.gz "$into/"
"$clone/build/sbom/bin/python" "$clone/scripts/release/make_sbom.py" "$version" "$commit" "$into" \
  x86_64=/var/lib/dpkg aarch64="$clone/build-aarch64/sysroot/var/lib/dpkg"
notes "$clone/CHANGELOG.md" | sed '1{/^$/d}' >"$into/NOTES.md"
(cd "$into" && sha256sum -- * >SHA256SUMS.new && mv SHA256SUMS.new SHA256SUMS && cat SHA256SUMS)
say "$into holds version $version of commit $commit; nothing was published"
