#!/usr/bin/env bash
# Sets up everything Hyperion needs, each part only when it is missing: Debian packages, libtorch, the default corpus.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/setup.sh [--interop] [--no-apt]
  --interop  also make .venv-interop, the Python environment of the tests against PyTorch and torchtitan
  --no-apt   do not check Debian packages (they are provided in another way)
  HYPERION_TORCH=FOLDER   use the torch folder of an installed torch 2.11 instead of downloading one; remembered
  HYPERION_ARROW=FOLDER   use the pyarrow folder of an installed pyarrow 26.0.1 to read Parquet; default: one that is beside torch
  HYPERION_PYTHON=PROGRAM the Python (3.10 to 3.14) the virtual environments are made with; default python3
  HYPERION_CUDA=ON|OFF    set up for compiling CUDA code, or not; default: when a CUDA toolkit or a GPU is there'
help_for "$usage" "$@"
interop=false apt=true
for argument in "$@"; do
  case $argument in
    --interop) interop=true ;;
    --no-apt) apt=false ;;
    *) fail "unknown argument '$argument'" "$usage" ;;
  esac
done

requirements=$root/scripts/requirements  # what is installed: Debian packages by name, Python packages by version and hash
venv=$root/.venv
interop_venv=$root/.venv-interop
python=${HYPERION_PYTHON:-python3}
cuda=${HYPERION_CUDA:-AUTO}
[ -z "${HYPERION_TORCH:-}" ] || HYPERION_TORCH=$(realpath -ms "$HYPERION_TORCH")
[ -z "${HYPERION_ARROW:-}" ] || HYPERION_ARROW=$(realpath -ms "$HYPERION_ARROW")

corpus_present() { compgen -G "$root/data/*.jsonl.gz" >/dev/null; }
torch_in_venv() { compgen -G "$venv/lib/python3*/site-packages/torch" | head -n 1 || true; }
is_installed() { cmp --silent "$requirements/$2.lock" "$1/$2.lock"; }  # VENV LOCK

# Everything is as the last run left it when nothing that it read has changed since it wrote $setup_state, its last act.
nothing_to_do() {
  local torch arrow
  torch=$(setup_result torch) arrow=$(setup_result arrow)
  [ -z "$(find "$root/scripts/setup.sh" "$requirements" -newer "$setup_state" 2>&1)" ] &&
    [ "$(setup_result cuda)" = "$cuda" ] && [ "${HYPERION_TORCH:-$torch}" = "$torch" ] && [ "${HYPERION_ARROW:-$arrow}" = "$arrow" ] &&
    [ -e "$torch/lib/libtorch_cpu.so" ] && corpus_present || return 1
  ! $interop || { is_installed "$interop_venv" interop && [ "$(setup_result interop_torch)" = "$torch" ]; }
}

install_debian_packages() {
  local packages missing command log
  packages=$(sed '/^#/d' "$requirements/apt.txt" | sort)
  command -v dpkg-query >/dev/null ||
    fail "this is no Debian system" "install the equivalents of these, then run with --no-apt: ${packages//$'\n'/ }"
  missing=$(comm -23 <(echo "$packages") <(dpkg-query -W -f '${db:Status-Status} ${Package}\n' | sed -n 's/^installed //p' | sort -u))
  [ -n "$missing" ] || return 0
  read -ra command <<<"apt-get install --yes --no-install-recommends ${missing//$'\n'/ }"
  [ "$(id -u)" = 0 ] || fail "these Debian packages are missing: ${missing//$'\n'/ }" "sudo ${command[*]}"
  say "Debian packages: installing ${missing//$'\n'/ } (about 100 MB to download where none is there)"
  log=$(mktemp)
  if ! { retry apt-get -q update && DEBIAN_FRONTEND=noninteractive retry "${command[@]}"; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    fail "apt could not install them (its last lines are above, all in $log)" "run: apt-get update && ${command[*]}"
  fi
  rm -f "$log"
}

make_venv() {  # FOLDER
  ! "$1/bin/python" -m pip --version >/dev/null 2>&1 || return 0
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

# pip_install VENV LOCK WHAT DOWNLOAD MIB: the packages of a lock file, which take MIB on the disk. A copy of it in the environment tells
# that they are there.
pip_install() {
  ! is_installed "$1" "$2" || return 0
  local folder free quiet=()
  for folder in "$root" "${TMPDIR:-/tmp}"; do
    free=$(df -Pm "$folder" | awk 'NR == 2 { print $4 }')
    [ -d "$1" ] || [ "$free" -ge "$5" ] || fail "$3 needs $5 MiB, but $folder has $free MiB free" "free some space (or set TMPDIR to a folder that has it)"
  done
  make_venv "$1"
  say "$3: into ${1##*/} ($4 to download, less what is there)"
  [ -t 2 ] || quiet=(--quiet)  # on a terminal pip shows how far the download is
  retry "$1/bin/python" -m pip install "${quiet[@]}" --no-compile --no-deps --require-hashes -r "$requirements/$2.lock" >&2 ||
    fail "pip could not install scripts/requirements/$2.lock" "check the network and pip's settings ($1/bin/python -m pip config list), then run this again: it continues where it stopped"
  cp "$requirements/$2.lock" "$1/"
}

find_toolkit() {  # prints the folder of a CUDA 13 toolkit, if one is here
  local nvcc
  nvcc=$(PATH="${CUDA_HOME:-/usr/local/cuda}/bin:$PATH" command -v nvcc) || return 0
  [[ $("$nvcc" --version) != *"release 13."* ]] || dirname "$(dirname "$(readlink -f "$nvcc")")"
}

toolkit_has_libraries() {  # FOLDER: those of libtorch that a toolkit can provide
  local library known
  known=$({ /sbin/ldconfig -p; ls "$1/lib64"; } 2>/dev/null || true)
  for library in libcudart.so.13 libcupti.so.13 libcublas.so.13 libcusparse.so.12 libcufft.so.12 libcurand.so.10 libnccl.so.2 libcudnn.so.9; do
    [[ $known == *"$library"* ]] || return 1
  done
}

wants_cuda() { [ "$cuda" = ON ] || { [ "$cuda" != OFF ] && gpu_present; }; }

install_torch() {  # TOOLKIT (empty: none)
  if [ -n "$1" ] && toolkit_has_libraries "$1"; then
    pip_install "$venv" torch-toolkit "libtorch, with the CUDA libraries of $1" "0.8 GB" 3000
  elif [ -n "$1" ] || wants_cuda; then
    pip_install "$venv" torch-cuda "libtorch, with all its CUDA libraries and the CUDA compiler" "2.8 GB" 9000
    ln -sfn lib "$(torch_in_venv)/../nvidia/cu13/lib64"  # where nvcc has its libraries linked from
  else
    pip_install "$venv" torch-cpu "libtorch for CPU" "0.6 GB" 3000
  fi
}

check_torch() {  # FOLDER: is it a usable torch 2.11?
  local found missing
  [ -e "$1/lib/libtorch_cpu.so" ] ||
    fail "there is no libtorch in '$1' (no lib/libtorch_cpu.so)" \
      "set HYPERION_TORCH to what this prints: python3 -c 'import importlib.util as u; print(u.find_spec(\"torch\").submodule_search_locations[0])'"
  found=$(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$1/version.py")
  [[ $found == 2.11.* ]] ||
    fail "'$1' is torch $found; Hyperion is written for torch 2.11" "unset HYPERION_TORCH to have torch 2.11.0 installed in $venv"
  missing=$(LD_LIBRARY_PATH="${CUDA_HOME:-/usr/local/cuda}/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    ldd "$1/lib/libtorch_cpu.so" | sed -n 's/ => not found//p' | tr -d '\t' | tr '\n' ' ')
  [ -z "$missing" ] ||
    fail "libtorch of '$1' needs libraries that are not there: $missing" "put them on LD_LIBRARY_PATH, or install the packages that torch $found depends on"
}

# pyarrow comes with a torch that is installed here, unless it cannot be had; to a torch from elsewhere nothing is added.
find_arrow() {  # TORCH; sets `arrow`, empty: Parquet files are not read
  arrow=${HYPERION_ARROW:-$(dirname "$1")/pyarrow}
  if [ -z "${HYPERION_ARROW:-}" ] && [ "$1" = "$(torch_in_venv)" ] && "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    (pip_install "$venv" arrow "pyarrow, with which Parquet is read" "55 MB" 250) || true
  fi
  [ ! -e "$arrow/libparquet.so.2600" ] || return 0
  [ -z "${HYPERION_ARROW:-}" ] ||
    fail "there is no pyarrow 26.0.1 in HYPERION_ARROW=$HYPERION_ARROW (no libparquet.so.2600)" "python3 -m pip install pyarrow==26.0.1, or unset HYPERION_ARROW"
  say "no pyarrow 26.0.1 in $arrow: Parquet and Arrow files will not be read (docs/install.md)"
  arrow=''
}

# The interop environment sees the torch of the build through a path file.
prepare_interop() {  # TORCH
  pip_install "$interop_venv" interop "interop: the packages that the tests compare with" "0.4 GB" 2000
  dirname "$1" >"$("$interop_venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/hyperion-torch.pth"
  if ! "$interop_venv/bin/python" -c 'import torch' 2>/dev/null && [ "$1" = "$(torch_in_venv)" ]; then
    pip_install "$venv" torch-cuda "interop: Python's torch needs all its CUDA libraries, even on a CPU;" "2.8 GB" 9000
  fi
  "$interop_venv/bin/python" -c 'import torch' ||
    fail "the interop environment cannot import torch (see above)" "install what is missing there: $interop_venv/bin/python -m pip install ..."
}

set_up() {
  ! nothing_to_do || return 0  # another run has done it while this one waited
  ! $apt || install_debian_packages
  command -v "$python" >/dev/null || fail "there is no program '$python'" "install Python 3 or set HYPERION_PYTHON to one"
  local torch=${HYPERION_TORCH:-$(setup_result torch)} toolkit='' interop_torch arrow
  [ "$cuda" = OFF ] || toolkit=$(find_toolkit)
  if [ -z "${HYPERION_TORCH:-}" ] && { [[ $torch == "$venv"/* ]] || [ ! -e "$torch/lib/libtorch_cpu.so" ]; }; then
    install_torch "$toolkit"
    torch=$(torch_in_venv)
  fi
  check_torch "$torch"
  find_arrow "$torch"
  if [ -z "$toolkit" ] && wants_cuda && [ -x "$torch/../nvidia/cu13/bin/nvcc" ]; then toolkit=$(realpath "$torch/../nvidia/cu13"); fi
  if ! corpus_present; then
    say "default corpus: decoding it into data/"
    "$python" "$root/scripts/prepare_corpus.py" --out "$root/data" ||
      fail "the default corpus could not be made" "see above; to go without it, put JSON lines with a 'text' field into data/ as NAME.jsonl.gz"
  fi
  interop_torch=$(setup_result interop_torch)
  if $interop; then
    prepare_interop "$torch"
    interop_torch=$torch
  fi
  printf '%s\n' "torch $torch" "arrow $arrow" "cuda_home $toolkit" "cuda $cuda" "interop_torch $interop_torch" >"$setup_state.new"
  mv "$setup_state.new" "$setup_state"
  say "done: libtorch at $torch; CUDA compiler: ${toolkit:-none}"
}

nothing_to_do || one_at_a_time setup set_up
