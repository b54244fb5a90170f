#!/usr/bin/env bash
# Puts into build-aarch64/ what a build for aarch64 on another processor needs, each part only when it is missing.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/setup_aarch64.sh
  sysroot/  the libraries of scripts/requirements/apt.txt for arm64, of this Debian, unpacked (155 MB; nothing of this system changes)
  torch/    the packages of scripts/requirements/torch-aarch64.lock and arrow.lock for aarch64 (1.8 GB)
  Then: scripts/build.sh --preset aarch64 hyperion, and scripts/package.sh --arch aarch64
  PIP_FIND_LINKS=FOLDER  wheels that need not be downloaded'
help_for "$usage" "$@"
[ $# = 0 ] || fail "unknown argument '$1'" "$usage"

folder=$root/build-aarch64 requirements=$root/scripts/requirements
compiler=aarch64-linux-gnu-g++

install_compiler() {
  ! command -v $compiler >/dev/null || return 0
  local command=(apt-get install --yes --no-install-recommends g++-aarch64-linux-gnu)
  [ "$(id -u)" = 0 ] || fail "there is no $compiler" "sudo ${command[*]}"
  say "Debian packages: installing g++-aarch64-linux-gnu"
  { retry apt-get -q update && DEBIAN_FRONTEND=noninteractive retry "${command[@]}"; } >"$folder/apt.log" 2>&1 ||
    fail "apt could not install g++-aarch64-linux-gnu" "see $folder/apt.log"
}

# apt with folders of its own: as if the packages were to be installed in an empty system.
make_sysroot() {
  local apt=$folder/apt new=$folder/sysroot.new packages deb name link target
  mapfile -t packages < <(sed '/^#/d' "$requirements/apt.txt" | grep -e '-dev$' -e '^catch2$')
  say "sysroot: downloading ${#packages[@]} packages for arm64 with what they need (30 MB)"
  rm -rf "$apt" "$new"
  mkdir -p "$apt"/{state/lists,cache/archives}/partial "$new/var/lib/dpkg/info"
  : >"$apt/state/status"
  echo 1 >"$new/var/lib/dpkg/info/format"
  cat >"$apt/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "";
Dir::State "$apt/state";
Dir::State::status "$apt/state/status";
Dir::Cache "$apt/cache";
END
  export APT_CONFIG=$apt/apt.conf
  { retry apt-get -q update &&
    retry apt-get -q --yes --download-only --no-install-recommends install libc6-dev "libstdc++-$($compiler -dumpversion | cut -d . -f 1)-dev" "${packages[@]}"; } \
    >"$folder/apt.log" 2>&1 || fail "apt could not download them" "see $folder/apt.log"
  for deb in "$apt"/cache/archives/*.deb; do
    dpkg-deb -x "$deb" "$new"
    # what dpkg-query needs to know the owner of each file and versions
    name=$(dpkg-deb -f "$deb" Package)
    [ "$(dpkg-deb -f "$deb" Multi-Arch)" != same ] || name+=:arm64
    dpkg-deb --fsys-tarfile "$deb" | tar -t | sed 's|^\.||; s|/$||; s|^$|/.|' >"$new/var/lib/dpkg/info/$name.list"
    printf '%s\nStatus: install ok installed\n\n' "$(dpkg-deb -f "$deb" Package Version Architecture Multi-Arch Maintainer Description)" >>"$new/var/lib/dpkg/status"
  done
  find "$new" -type l -lname '/*' -printf '%p %l\n' | while read -r link target; do
    ln -sfn "$(realpath -ms --relative-to="$(dirname "$link")" "$new$target")" "$link"
  done
  cp "$requirements/apt.txt" "$new/"
  rm -rf "$apt" "$folder/sysroot"
  mv "$new" "$folder/sysroot"
}

# pip takes wheels for another processor when all platforms that they may name are listed.
install_torch() {
  local platforms=(--platform manylinux2014_aarch64) glibc
  for glibc in {17..28}; do platforms+=(--platform "manylinux_2_${glibc}_aarch64"); done
  say "torch: the wheels for aarch64 (0.6 GB to download, less what is there)"
  rm -rf "$folder/torch"
  retry "${HYPERION_PYTHON:-python3}" -m pip install --quiet --target "$folder/torch" "${platforms[@]}" --python-version 3.11 --only-binary=:all: --no-deps \
    --no-compile --require-hashes -r "$requirements/torch-aarch64.lock" -r "$requirements/arrow.lock" >&2 ||
    fail "pip could not install scripts/requirements/torch-aarch64.lock and arrow.lock" "check the network and pip's settings, then run this again"
  cp "$requirements"/{torch-aarch64,arrow}.lock "$folder/torch/"
}

set_up() {
  install_compiler
  cmp --silent "$requirements/apt.txt" "$folder/sysroot/apt.txt" || make_sysroot
  cmp --silent "$requirements/torch-aarch64.lock" "$folder/torch/torch-aarch64.lock" && cmp --silent "$requirements/arrow.lock" "$folder/torch/arrow.lock" || install_torch
}
mkdir -p "$folder"
one_at_a_time setup_aarch64 set_up
