#!/usr/bin/env bash
# Installs the wheel with pip, as an ordinary user without a compiler, in systems that debootstrap makes, and trains there.
set -euo pipefail
usage='usage: tests/packaging/roots.sh [--wheel FILE] [--into FOLDER] [SYSTEM...]     (default: bookworm trixie bullseye)
  --wheel  default: one made of build/
  --into   gets a root for each system, which is kept: 10 GB each, most of it torch with its CUDA libraries; default: build/roots
  PIP_FIND_LINKS=FOLDER  wheels that need not be downloaded (pip download torch==2.11.0)
  bookworm and trixie (Debian 12 and 13): training with 1 and 2 ranks, checkpoint, resume, generate, and what must be refused.
  bullseye (Debian 11, glibc 2.31): pip refuses the wheel.
  It needs root, debootstrap and a mirror of apt with these systems; exit code 77 without.'
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
root=$(dirname "$(dirname "$here")")
wheel='' folder=$root/build/roots
while [ $# -gt 0 ]; do
  case $1 in
    --wheel) wheel=$(readlink -f "${2:?$usage}"); shift 2 ;;
    --into) folder=${2:?$usage}; shift 2 ;;
    -h | --help) echo "$usage"; exit 0 ;;
    -*) echo "$usage" >&2; exit 2 ;;
    *) break ;;
  esac
done
systems=("$@")
[ ${#systems[@]} -gt 0 ] || systems=(bookworm trixie bullseye)
if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
  echo "SKIPPED: this needs root and debootstrap (Debian: apt-get install debootstrap)"
  exit 77
fi
# Mounts belong to a process of their own.
if [ -z "${HYPERION_ROOTS_ENTERED:-}" ]; then
  mkdir -p "$folder"
  if [ -z "$wheel" ]; then
    rm -f "$folder"/*.whl
    "$root/scripts/package.sh" --wheel --no-build --into "$folder"
    wheel=$(echo "$folder"/*.whl)
  fi
  HYPERION_ROOTS_ENTERED=yes exec unshare --mount --propagation private "$0" --wheel "$wheel" --into "$(readlink -f "$folder")" "${systems[@]}"
fi

# shellcheck disable=SC2016  # apt's variable
mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -v security | head -n 1 || true)
for system in "${systems[@]}"; do
  [ -e "$folder/$system/usr/bin/python3" ] || python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=60)' \
    "${mirror%/}/dists/$system/Release" 2>/dev/null || {
    echo "SKIPPED: apt's mirror, ${mirror:-none}, does not have $system"
    exit 77
  }
done
in_root() {  # COMMAND...: as an ordinary user of $system
  chroot --userspec=1000:1000 --groups= "$folder/$system" env -i HOME=/home/user USER=user PATH=/usr/bin:/bin LANG=C.UTF-8 \
    ${PIP_CERT:+PIP_CERT="$PIP_CERT"} PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_FIND_LINKS=/wheels HYPERION_DEVICE=cpu "$@"
}

for system in "${systems[@]}"; do
  in=$folder/$system
  [ -e "$in/usr/bin/python3" ] ||
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$system" "$in" "$mirror" >"$folder/$system.log"
  mkdir -p "$in/home/user" "$in/wheels" "$in/given"
  chown 1000:1000 "$in/home/user"
  grep '^user:' "$in/etc/passwd" >/dev/null || echo user:x:1000:1000::/home/user:/bin/sh >>"$in/etc/passwd"
  cp -L /etc/resolv.conf "$in/etc/resolv.conf"
  mount --bind /etc/ssl/certs "$in/etc/ssl/certs"
  mount -t proc proc "$in/proc"
  mount -t tmpfs tmpfs "$in/dev"
  mkdir -m 1777 "$in/dev/shm"
  for device in null zero random urandom; do
    touch "$in/dev/$device"
    mount --bind "/dev/$device" "$in/dev/$device"
  done
  mount -t tmpfs tmpfs "$in/given"
  cp "$wheel" "$here/in_root.sh" "$in/given/"
  [ ! -d "${PIP_FIND_LINKS:-}" ] || mount --bind "$PIP_FIND_LINKS" "$in/wheels"
  echo "=== $(sed -n 's/^PRETTY_NAME=//p' "$in/etc/os-release"), $(chroot "$in" ldd --version | head -n 1), $(chroot "$in" python3 --version)"
  if [ "$system" = bullseye ]; then
    in_root sh -c 'python3 -m venv --clear ~/venv && ~/venv/bin/pip install -q --no-deps /given/*.whl' 2>&1 | tee "$folder/$system.said" || true
    grep 'is not a supported wheel on this platform' "$folder/$system.said" >/dev/null
    continue
  fi
  in_root sh /given/in_root.sh install train
  # A home that cannot be written, no /dev/shm, a folder of temporary files from which nothing can be run.
  mount --bind "$in/home/user" "$in/home/user"
  mount -o remount,bind,ro "$in/home/user"
  rmdir "$in/dev/shm"
  mount -t tmpfs -o noexec,mode=1777 tmpfs "$in/tmp"
  in_root sh /given/in_root.sh restricted
done
echo "all passed"
