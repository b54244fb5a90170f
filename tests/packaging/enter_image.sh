#!/usr/bin/env bash
# Stands in for container programs that Debian does not have; containers.sh links it under their names. Enters a folder that holds an image, with this
# host's devices and the folders that are mounted, as user 1000.
#   apptainer exec [--nv] IMAGE COMMAND...    mounts /tmp and the working folder, as Apptainer does
#   srun OPTION... [--container-image=IMAGE] [--container-mounts=FOLDER:FOLDER,...] COMMAND...    the options of Pyxis, for $REAL_SRUN
set -euo pipefail
enter() { exec unshare --mount --propagation private "$(readlink -f "$0")" "$@"; }  # IMAGE MOUNTS COMMAND...
case ${0##*/} in
  apptainer)
    [ "$1" = exec ]
    shift
    [ "$1" != --nv ] || shift
    enter "$1" "/tmp $PWD" "${@:2}"
    ;;
  srun)
    image='' mounts='' options=()
    while [[ $1 = -* ]]; do
      case $1 in
        --container-image=*) image=${1#*=} ;;
        --container-mounts=*) mounts=$(tr , '\n' <<<"${1#*=}" | sed 's/:.*//') ;;
        *) options+=("$1") ;;
      esac
      shift
    done
    [ -z "$image" ] || set -- "$(dirname "$0")/pyxis" "$image" "$mounts" "$@"
    exec "$REAL_SRUN" "${options[@]}" "$@"
    ;;
  pyxis) enter "$@" ;;
  *)  # in a process with mounts of its own
    image=$1
    for folder in /dev /proc /sys $2; do
      mkdir -p "$image$folder"
      mount --rbind "$folder" "$image$folder"
    done
    # shellcheck disable=SC2016  # for the shell inside
    exec chroot --userspec=1000:1000 --groups= "$image" /bin/sh -euc 'PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
      set -a
      . /.image-environment
      set +a
      cd "$0"
      exec "$@"' "$PWD" "${@:3}"
    ;;
esac
