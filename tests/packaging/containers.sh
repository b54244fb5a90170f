#!/usr/bin/env bash
# Builds the images of scripts/containers/ from the wheel, and trains in them as an ordinary user: alone, and with scripts/train.slurm under a real SLURM
# of two nodes on this host.
set -euo pipefail
# shellcheck disable=SC2016,SC2034  # systems.sh prints it
usage='usage: tests/packaging/containers.sh [--wheel FILE] [--into FOLDER] [DEVICE...]     (default: cpu; cuda downloads 2.8 GB, and runs on CPUs too)
  --wheel  default: one made of build/
  --into   gets a root for Debian and the images, which are kept; default: build/roots
  Containerfile is built by buildah, from an image that debootstrap makes. Debian has no Apptainer: the sections of hyperion.def are executed here.
  `apptainer exec`, and the options that Pyxis gives srun, are those of enter_image.sh.
  It needs root, debootstrap, buildah, SLURM and a mirror of apt; exit code 77 without.'
# shellcheck source=tests/packaging/systems.sh
. "$(dirname "${BASH_SOURCE[0]}")/systems.sh"
devices=("${arguments[@]}")
[ ${#devices[@]} -gt 0 ] || devices=(cpu)
for program in buildah crun slurmctld munged; do
  PATH=$PATH:/usr/sbin command -v $program >/dev/null || skip "there is no $program (apt-get install --no-install-recommends buildah crun slurm-wlm munge)"
done
fail() {  # MESSAGE [LOG]
  tail -n 20 "${2:-/dev/null}"
  echo "FAILED: $1"
  exit 1
}
into=$folder
work=$into/containers
rm -rf "$work"
mkdir -p "$work/dist" "$work/bin" "$into/storage"
cp "$wheel" "$work/dist/"

# --- the image of Debian that both begin with ---
containers=$root/scripts/containers
base=$(sed -n 's/^FROM //p' "$containers/Containerfile")
[ "$(sed -n 's/^From: //p' "$containers/hyperion.def")" = "$base" ] || fail "hyperion.def begins with another image than Containerfile, $base"
case $base in
  */debian:12.*) system=bookworm ;;
  */debian:13.*) system=trixie ;;
  *) fail "which Debian is $base?" ;;
esac
debian=$into/$system.minimal
make_system "$system" "$debian"
printf '[storage]\ndriver = "overlay"\nrunroot = "%s/run"\ngraphroot = "%s/graph"\n' "$into/storage" "$into/storage" >"$work/storage.conf"
export CONTAINERS_STORAGE_CONF=$work/storage.conf BUILDAH_ISOLATION=chroot
tar -C "$debian" -cf "$work/debian.tar" .
cp -L /etc/ssl/certs/ca-certificates.crt "$work/certificates.crt"
printf 'FROM scratch\nADD debian.tar /\nCOPY certificates.crt /given/\nENV PATH=/usr/sbin:/usr/bin:/sbin:/bin PIP_CERT=/given/certificates.crt\n' >"$work/Debian"
buildah bud -f "$work/Debian" -t "$base" "$work" >"$work/debian.log" 2>&1 || fail "the image of Debian cannot be made" "$work/debian.log"

losses() { sed -n 's/.*step: *[0-9]* .*loss: *\([0-9.]*\).*/\1/p' "$1"; }
falls() {  # LOG
  losses "$1" | awk 'NR == 1 { first = $1 } { last = $1 } END { printf "  %d steps, loss %s to %s\n", NR, first, last; exit !(NR > 1 && last < first) }' ||
    fail "the loss does not fall" "$1"
}

# --- the two images, as folders ---
build_container() {  # FOLDER
  buildah bud --pull-never --build-arg "DEVICE=$device" -f "$containers/Containerfile" -t "hyperion-$device" "$work/dist" >"$work/build.log" 2>&1 ||
    fail "Containerfile cannot be built" "$work/build.log"
  local container
  container=$(buildah from --pull-never "hyperion-$device")
  # shellcheck disable=SC2016  # for the shell inside
  buildah run "$container" -- sh -c 'for c in cc gcc c++ clang; do ! command -v $c || exit 1; done
    echo "$(id -u) $PWD"; HYPERION_DEVICE=cpu NPROC=2 hyperion-launch debug_model' >"$work/run.log" 2>&1 || fail "the image does not train" "$work/run.log"
  [ "$(head -n 1 "$work/run.log")" = "1000 /work" ] || fail "the image has another user or working folder" "$work/run.log"
  falls "$work/run.log"
  cp -a "$(buildah mount "$container")" "$1"
  buildah inspect --format '{{range .OCIv1.Config.Env}}{{println .}}{{end}}' "$container" >"$1/.image-environment"
  buildah rm "$container" >/dev/null
}
section() { sed "s/{{ DEVICE }}/$device/g" "$containers/hyperion.def" | awk -v name="%$1" '/^%/ { here = $1 == name; next } here && NF'; }  # NAME
build_apptainer() {  # FOLDER
  local from to
  cp -a "$debian" "$1"
  while read -r from to; do
    mkdir -p "$1$to"
    # shellcheck disable=SC2086  # Apptainer expands wildcards as well
    (cd "$work" && cp -fLr $from "$1$to") || fail "hyperion.def copies what is not there: $from"
  done < <(section files)
  mount_system "$1"
  section post >"$1/given/post"
  section environment >"$1/.image-environment"
  chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin PIP_CERT=/given/certificates.crt sh -ex /given/post >"$work/build.log" 2>&1 ||
    fail "the commands of hyperion.def fail" "$work/build.log"
}
for device in "${devices[@]}"; do
  echo "Containerfile, DEVICE=$device, two ranks:"
  build_container "$work/oci-$device"
  echo "hyperion.def, DEVICE=$device"
  build_apptainer "$work/apptainer-$device"
done

# --- scripts/train.slurm with these images: the commands of docs/containers.md ---
python3 -m venv "$work/venv"  # of the login node, without torch
"$work/venv/bin/pip" install --quiet --no-index --no-deps "$wheel"
for program in apptainer srun pyxis; do ln -s "$here/enter_image.sh" "$work/bin/$program"; done
# shellcheck source=tests/distributed/slurm_cluster.sh
. "$root/tests/distributed/slurm_cluster.sh"
REAL_SRUN=$(command -v srun)
export REAL_SRUN PATH=$work/bin:$work/venv/bin:$PATH HYPERION_DEVICE=cpu HYPERION_BINARY=/opt/hyperion/bin/hyperion MASTER_ADDR=127.0.0.1
job_has_ended() { job_is "$job" COMPLETED || job_is "$job" FAILED; }
umask 0  # the daemons are root's, and the programs in an image another user's
chmod 1777 "$folder"
cd "$folder"
for device in "${devices[@]}"; do
  for how in apptainer pyxis; do
    if [ $how = apptainer ]; then
      export HYPERION_WRAPPER="apptainer exec --nv $work/apptainer-$device" HYPERION_SRUN_ARGS=
    else
      export HYPERION_WRAPPER='' HYPERION_SRUN_ARGS="--container-image=$work/oci-$device --container-mounts=$work/venv:$work/venv,$PWD:$PWD"
    fi
    job=$(hyperion-slurm --parsable --nodes=2 --ntasks-per-node=1 --gpus-per-node=0 --cpus-per-task=1 --time=9 --output="$PWD/job-%j.log" debug_model \
      --metrics.log_freq=1 --training.seq_len=128 --training.local_batch_size=4)
    wait_until "job $job" job_has_ended
    job_is "$job" COMPLETED || fail "job $job by $how"
    grep 'dp_shard 2 ' "job-$job.log" >/dev/null || fail "job $job has not two ranks"
    [ -e "job-$job.ranks/rank_1.n1.log" ] || fail "rank 1 has no log"
    echo "train.slurm by $how, DEVICE=$device, a rank on each of two nodes:"
    falls "job-$job.log"
  done
done
echo "all passed"
