# What tests of packages in systems of their own share: the package, debootstrap, mounts. Sourced by a script that sets `usage`; never run.
# Reads --wheel FILE and --into FOLDER, `folder`; what else is given is left in `arguments`.
# shellcheck shell=bash
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
root=$(dirname "$(dirname "$here")")
wheel='' folder=$root/build/roots
skip() {
  echo "SKIPPED: $1"
  exit 77
}
while [ $# -gt 0 ]; do
  case $1 in
    --wheel) wheel=$(readlink -f "${2:?$usage}"); shift 2 ;;
    --into) folder=${2:?$usage}; shift 2 ;;
    -h | --help) echo "$usage"; exit 0 ;;
    -*) echo "$usage" >&2; exit 2 ;;
    *) break ;;
  esac
done
arguments=("$@")
if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
  skip "this needs root and debootstrap (Debian: apt-get install debootstrap)"
fi
# Mounts belong to a process of their own.
if [ -z "${HYPERION_ROOTS_ENTERED:-}" ]; then
  mkdir -p "$folder"
  if [ -z "$wheel" ]; then
    rm -f "$folder"/*.whl
    "$root/scripts/package.sh" --wheel --no-build --into "$folder"
    wheel=$(echo "$folder"/*.whl)
  fi
  HYPERION_ROOTS_ENTERED=yes exec unshare --mount --propagation private "$0" --wheel "$wheel" --into "$(readlink -f "$folder")" "${arguments[@]}"
fi

# shellcheck disable=SC2016  # apt's variable
mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -v security | head -n 1 || true)
make_system() {  # SYSTEM ROOT [PACKAGE,...]: by debootstrap, unless it is there; skips where the mirror lacks it
  if [ ! -e "$2.done" ]; then
    python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=60)' "${mirror%/}/dists/$1/Release" 2>/dev/null ||
      skip "apt's mirror, ${mirror:-none}, does not have $1"
    debootstrap --variant=minbase ${3:+--include="$3"} "$1" "$2" "$mirror" >"$2.log"
    touch "$2.done"
  fi
}
mount_system() {  # ROOT: what programs expect of a system, with a tmpfs as /given for what the test gives them
  mkdir -p "$1/given"
  cp -L /etc/resolv.conf "$1/etc/resolv.conf"
  mount -t proc proc "$1/proc"
  mount -t tmpfs tmpfs "$1/dev"
  mkdir -m 1777 "$1/dev/shm"
  local device
  for device in null zero random urandom; do
    touch "$1/dev/$device"
    mount --bind "/dev/$device" "$1/dev/$device"
  done
  mount -t tmpfs tmpfs "$1/given"
  cp -L /etc/ssl/certs/ca-certificates.crt "$1/given/certificates.crt"  # of this host, which pip is given as PIP_CERT
}
