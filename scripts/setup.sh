#!/usr/bin/env bash
# Sets up everything Hyperion needs, each part only when it is missing: Debian packages, libtorch, the default corpus.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/setup.sh [--interop] [--no-apt]
  --interop  also make .venv-interop, the Python environment of the tests against PyTorch and torchtitan
  --no-apt   do not look at Debian packages (they are provided in another way)
  HYPERION_TORCH=FOLDER   use the torch folder of an installed torch 2.11 instead of downloading one; remembered
  HYPERION_PYTHON=PROGRAM the Python (3.10 to 3.14) the virtual environments are made with; default python3
  HYPERION_CUDA=ON|OFF    set up for compiling CUDA code, or not; default: when a CUDA toolkit or a GPU is there'

torch_version=2.11.0
cuda_version=13.0     # what that wheel was built with
cuda_patch=13.0.88    # the compiler that belongs to it; its parts must be of one version, so each is named
debian_packages=(g++ cmake ninja-build pkg-config git ccache mold python3-venv patchelf zstd
  libspdlog-dev libfmt-dev libtoml11-dev libcli11-dev catch2 libgloo-dev libpcre2-dev nlohmann-json3-dev
  libsimdjson-dev zlib1g-dev libzstd-dev libutf8proc-dev libxxhash-dev libdeflate-dev
  libjemalloc-dev)

help_for "$usage" "$@"
interop=false apt=true
for argument in "$@"; do
  case $argument in
    --interop) interop=true ;;
    --no-apt) apt=false ;;
    *) fail "unknown argument '$argument'" "$usage" ;;
  esac
done

[ -z "${HYPERION_TORCH:-}" ] || HYPERION_TORCH=$(realpath -ms "$HYPERION_TORCH")
venv=$root/.venv
interop_venv=$root/.venv-interop
interop_list=$root/tests/interop/requirements.txt
python=${HYPERION_PYTHON:-python3}

# --- what was done already -------------------------------------------------------------------------------------

inputs() { { cat "${BASH_SOURCE[0]}"; echo "${HYPERION_CUDA:-AUTO}"; } | sha256sum | cut -c1-32; }
interop_inputs() { { inputs; cat "$interop_list"; } | sha256sum | cut -c1-32; }

up_to_date() {
  local torch
  torch=$(setup_result torch)
  [ "$(setup_result inputs)" = "$(inputs)" ] && [ "${HYPERION_TORCH:-$torch}" = "$torch" ] &&
    [ -e "$torch/lib/libtorch_cpu.so" ] && corpus_present || return 1
  [ $interop = false ] || { [ "$(setup_result interop)" = "$(interop_inputs)" ] && [ -x "$interop_venv/bin/python" ]; }
}

# --- Debian packages -------------------------------------------------------------------------------------------

install_debian_packages() {
  command -v dpkg-query >/dev/null ||
    fail "this is no Debian system" "install the equivalents of these, then run with --no-apt: ${debian_packages[*]}"
  local missing command log
  mapfile -t missing < <(comm -23 <(printf '%s\n' "${debian_packages[@]}" | sort) \
    <(dpkg-query -W -f '${db:Status-Status} ${binary:Package}\n' | sed -n 's/^installed \([^:]*\).*/\1/p' | sort -u))
  [ ${#missing[@]} -gt 0 ] || return 0
  command=(apt-get install --yes --no-install-recommends "${missing[@]}")
  [ "$(id -u)" = 0 ] || fail "these Debian packages are missing: ${missing[*]}" "as root: ${command[*]}"
  say "Debian packages: installing ${missing[*]}"
  log=$(mktemp)
  if ! { retry apt-get -q update && DEBIAN_FRONTEND=noninteractive retry "${command[@]}"; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    fail "apt could not install them (its last lines are above, all in $log)" "run: apt-get update && ${command[*]}"
  fi
  rm -f "$log"
}

# --- CUDA and libtorch -------------------------------------------------------------------------------------------

toolkit_home() {  # prints the folder of a CUDA toolkit of the right major version, if one is here
  local nvcc
  nvcc=$(PATH="${CUDA_HOME:-/usr/local/cuda}/bin:$PATH" command -v nvcc) || return 0
  [[ $("$nvcc" --version) != *"release ${cuda_version%.*}."* ]] || dirname "$(dirname "$(readlink -f "$nvcc")")"
}
toolkit_has_libraries() {  # FOLDER: those of libtorch that a toolkit can provide
  local library known
  known=$({ /sbin/ldconfig -p; ls "$1/lib64"; } 2>/dev/null || true)
  for library in libcudart.so.13 libcupti.so.13 libcublas.so.13 libcusparse.so.12 libcufft.so.12 libcurand.so.10 \
    libnccl.so.2 libcudnn.so.9; do
    grep -q -F "$library" <<<"$known" || return 1
  done
}

torch_in_venv() { compgen -G "$venv/lib/python3*/site-packages/torch" | head -n 1 || true; }

check_torch() {  # FOLDER: is it a usable torch 2.11?
  local found missing
  [ -e "$1/lib/libtorch_cpu.so" ] ||
    fail "there is no libtorch in '$1' (no lib/libtorch_cpu.so)" \
      "set HYPERION_TORCH to what this prints: python3 -c 'import importlib.util as u; print(u.find_spec(\"torch\").submodule_search_locations[0])'"
  found=$(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$1/version.py")
  case $found in
    "${torch_version%.*}".*) ;;
    *) fail "'$1' is torch $found; Hyperion is written for torch ${torch_version%.*}" "unset HYPERION_TORCH to have torch $torch_version installed in $venv" ;;
  esac
  missing=$(LD_LIBRARY_PATH="${CUDA_HOME:-/usr/local/cuda}/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    ldd "$1/lib/libtorch_cpu.so" | sed -n 's/ => not found//p' | tr -d '\t' | tr '\n' ' ')
  [ -z "$missing" ] ||
    fail "libtorch of '$1' needs libraries that are not there: $missing" "put them on LD_LIBRARY_PATH, or install the packages that torch $found depends on"
}

need_disk() {  # MIB WHAT
  local folder free
  for folder in "$root" "${TMPDIR:-/tmp}"; do
    free=$(df -Pm "$folder" | awk 'NR == 2 { print $4 }')
    [ "$free" -ge "$1" ] || fail "$2 needs $1 MiB, but $folder has $free MiB free" "free some space (or set TMPDIR to a folder that has it)"
  done
}

make_venv() {  # FOLDER
  if "$1/bin/python" -m pip --version >/dev/null 2>&1; then return; fi
  local candidate
  rm -rf "$1"
  for candidate in "$python" /usr/bin/python3; do
    "$candidate" -c 'import sys, ensurepip; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' 2>/dev/null || continue
    say "${1##*/}: a virtual environment made with $("$candidate" --version) ($(command -v "$candidate"))"
    "$candidate" -m venv "$1" && return
    rm -rf "$1"
  done
  fail "no Python that can make a virtual environment: '$python' is $("$python" --version 2>&1 || true), and /usr/bin/python3 will not do either" \
    "install Python 3.10 to 3.14 with its venv module (Debian: python3-venv), or set HYPERION_PYTHON"
}

pip_install() {  # VENV ARGUMENTS...
  local quiet=()
  [ -t 2 ] || quiet=(--quiet)  # on a terminal pip shows how far the download is
  retry "$1/bin/python" -m pip install "${quiet[@]}" --no-compile --disable-pip-version-check "${@:2}" >&2 ||
    fail "pip could not install ${*:2}" "check the network and pip's settings ($1/bin/python -m pip config list), then run this again: it goes on where it stopped"
}

# Wheels name their libraries libX.so.N only; compilers look for libX.so, and toolkits' users for lib64.
complete_wheel_toolkit() {  # FOLDER/nvidia
  local library
  ln -sfn lib "$1/cu13/lib64"
  for library in "$1"/{cu13,nccl}/lib/lib*.so.*; do
    [ ! -e "$library" ] || ln -sfn "${library##*/}" "${library%%.so.*}.so"
  done
}

wants_cuda() { case ${HYPERION_CUDA:-AUTO} in ON) true ;; OFF) false ;; *) gpu_present ;; esac; }

install_torch() {  # TOOLKIT FOLDER (empty: none)
  local new=true
  [ -z "$(torch_in_venv)" ] || new=false
  announce() { ! $new || { need_disk "$1" "libtorch" && say "libtorch: torch $torch_version $2"; }; }
  make_venv "$venv"
  if [ -n "$1" ] && toolkit_has_libraries "$1"; then
    announce 3000 "with the CUDA libraries of $1 (0.6 GB to download)"
    pip_install "$venv" --no-deps "torch==$torch_version" \
      nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5 nvidia-cufile==1.15.1.6
  elif [ -n "$1" ] || wants_cuda; then
    announce 9000 "with all its CUDA libraries (2.5 GB to download)"
    pip_install "$venv" "torch==$torch_version"
    if [ -z "$1" ]; then
      say "CUDA compiler: there is no CUDA ${cuda_version%.*} toolkit, so nvcc $cuda_patch from its Python packages"
      pip_install "$venv" --no-deps nvidia-cuda-cccl==13.0.85 \
        "nvidia-cuda-nvcc==$cuda_patch" "nvidia-nvvm==$cuda_patch" "nvidia-cuda-crt==$cuda_patch"
    fi
    complete_wheel_toolkit "$(dirname "$(torch_in_venv)")/nvidia"
  else
    announce 3000 "for CPU (0.6 GB to download)"
    # libtorch needs these two even on a CPU
    pip_install "$venv" --no-deps "torch==$torch_version" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85
  fi
}

# --- the default corpus, and the environment of the interop tests ------------------------------------------------

corpus_present() { compgen -G "$root/data/*.jsonl.gz" >/dev/null; }

prepare_corpus() {
  corpus_present && return
  say "default corpus: decoding it into data/"
  "$python" "$root/scripts/prepare_corpus.py" --out "$root/data" ||
    fail "the default corpus could not be made" "see above; to go without it, put JSON lines with a 'text' field into data/ as NAME.jsonl.gz"
}

# The interop environment sees the torch of .venv through a path file, so that 1.7 GB are not installed twice. Its list
# names every package with its version and is installed without dependencies, for pip would add torch's CUDA packages.
prepare_interop() {  # TORCH FOLDER
  [ -d "$interop_venv" ] || need_disk 2000 "the interop environment"
  make_venv "$interop_venv"
  say "interop: the packages of tests/interop/requirements.txt into .venv-interop"
  dirname "$1" >"$("$interop_venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/hyperion-torch.pth"
  pip_install "$interop_venv" --no-deps -r "$interop_list"
  if ! "$interop_venv/bin/python" -c 'import torch' 2>/dev/null && [ "$1" = "$(torch_in_venv)" ]; then
    need_disk 7000 "torch's CUDA libraries, which its Python half loads even on a CPU,"
    say "interop: Python's torch needs all its CUDA libraries, even on a CPU (2 GB to download)"
    pip_install "$venv" "torch==$torch_version"
  fi
  "$interop_venv/bin/python" -c 'import torch' ||
    fail "the interop environment cannot import torch (see above)" "install what is missing there: $interop_venv/bin/python -m pip install ..."
}

set_up() {
  ! up_to_date || return 0  # another run has done it while this one waited
  ! $apt || install_debian_packages
  command -v "$python" >/dev/null || fail "there is no program '$python'" "install Python 3 or set HYPERION_PYTHON to one"
  local torch=${HYPERION_TORCH:-$(setup_result torch)} toolkit='' interop_done
  [ "${HYPERION_CUDA:-AUTO}" = OFF ] || toolkit=$(toolkit_home)
  if [ -z "${HYPERION_TORCH:-}" ] && { [[ $torch == "$venv"/* ]] || [ ! -e "$torch/lib/libtorch_cpu.so" ]; }; then
    install_torch "$toolkit"
    torch=$(torch_in_venv)
  fi
  check_torch "$torch"
  if [ -z "$toolkit" ] && wants_cuda && [ -x "$torch/../nvidia/cu13/bin/nvcc" ]; then toolkit=$(realpath "$torch/../nvidia/cu13"); fi
  prepare_corpus
  interop_done=$(setup_result interop)
  if $interop; then
    prepare_interop "$torch"
    interop_done=$(interop_inputs)
  fi
  printf '%s\n' "inputs $(inputs)" "torch $torch" "cuda_home $toolkit" "interop $interop_done" >"$setup_state.new"
  mv "$setup_state.new" "$setup_state"
  say "done: libtorch at $torch; CUDA compiler: ${toolkit:-none}"
}

up_to_date || one_at_a_time setup set_up
