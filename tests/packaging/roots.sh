#!/usr/bin/env bash
# Installs the wheel with pip, as an ordinary user without a compiler, in systems that debootstrap makes, and trains there.
set -euo pipefail
# shellcheck disable=SC2016,SC2034  # systems.sh prints it
usage='usage: tests/packaging/roots.sh [--wheel FILE] [--into FOLDER] [SYSTEM...]     (default: bookworm trixie bullseye)
  --wheel  default: one made of build/
  --into   gets a root for each system, which is kept: 10 GB each, most of it torch with its CUDA libraries; default: build/roots
  PIP_FIND_LINKS=FOLDER  wheels that need not be downloaded (pip download torch==2.11.0)
  bookworm and trixie (Debian 12 and 13): training with 1 and 2 ranks, checkpoint, resume, generate, and what must be refused.
  bullseye (Debian 11, glibc 2.31): pip refuses the wheel.
  It needs root, debootstrap and a mirror of apt with these systems; exit code 77 without.'
# shellcheck source=tests/packaging/systems.sh
. "$(dirname "${BASH_SOURCE[0]}")/systems.sh"
systems=("${arguments[@]}")
[ ${#systems[@]} -gt 0 ] || systems=(bookworm trixie bullseye)

for system in "${systems[@]}"; do make_system "$system" "$folder/$system" python3,python3-venv,ca-certificates; done
in_root() {  # COMMAND...: as an ordinary user of $system
  chroot --userspec=1000:1000 --groups= "$folder/$system" env -i HOME=/home/user USER=user PATH=/usr/bin:/bin LANG=C.UTF-8 \
    PIP_CERT=/given/certificates.crt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_FIND_LINKS=/wheels HYPERION_DEVICE=cpu "$@"
}

for system in "${systems[@]}"; do
  in=$folder/$system
  mkdir -p "$in/home/user" "$in/wheels"
  chown 1000:1000 "$in/home/user"
  grep '^user:' "$in/etc/passwd" >/dev/null || echo user:x:1000:1000::/home/user:/bin/sh >>"$in/etc/passwd"
  mount_system "$in"
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
