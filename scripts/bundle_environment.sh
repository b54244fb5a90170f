# Sourced by the programs of a bundle (scripts/package.sh): lets the loader find the libtorch of an installed torch 2.11.
#   HYPERION_TORCH=FOLDER    the torch folder to use; default: the one that HYPERION_PYTHON (default python3) imports
#   HYPERION_ARROW=FOLDER    the pyarrow folder, for Parquet and Arrow files; default: the one that HYPERION_PYTHON imports
# shellcheck shell=sh

: "${bundle:?the file that sources this one sets it to the folder of the bundle}"
bundle_fail() {
  printf '[hyperion] %s\n  remedy: %s\n' "${1//[[:cntrl:]]/?}" "$2" >&2
  exit 2
}

bundle_find() {  # PACKAGE: its folder
  "${HYPERION_PYTHON:-python3}" -c '
import importlib.util, sys
spec = importlib.util.find_spec(sys.argv[1])
print(spec.submodule_search_locations[0] if spec else "")' "$1" 2>/dev/null
}

bundle_prepare() {
  bundle_torch=${HYPERION_TORCH:-$(bundle_find torch)}
  HYPERION_ARROW=${HYPERION_ARROW:-$(bundle_find pyarrow || true)}
  export HYPERION_ARROW
  bundle_remedy="install torch 2.11 for python3, or set HYPERION_PYTHON to a Python that has it, or HYPERION_TORCH to its torch folder"
  [ -e "$bundle_torch/lib/libtorch_cpu.so" ] || bundle_fail "no libtorch found (looked in '$bundle_torch')" "$bundle_remedy"
  case $(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$bundle_torch/version.py") in
    2.11.*) ;;
    *) bundle_fail "'$bundle_torch' is not torch 2.11" "$bundle_remedy" ;;
  esac
  bundle_path=$bundle_torch/lib
  for bundle_folder in "$bundle_torch"/../nvidia/*/lib "${CUDA_HOME:-/usr/local/cuda}/lib64"; do
    if [ -d "$bundle_folder" ]; then bundle_path=$bundle_path:$bundle_folder; fi
  done
  LD_LIBRARY_PATH=$bundle_path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export LD_LIBRARY_PATH
  bundle_missing=$(ldd "$bundle/libexec/hyperion" 2>&1 | grep 'not found' || true)
  [ -z "$bundle_missing" ] || bundle_fail "this system lacks what the bundle needs: $bundle_missing" \
    "use a system like the one named in $bundle/BUNDLE, or build from source there (scripts/setup.sh)"
  HYPERION_BUNDLE_READY=$bundle
  export HYPERION_BUNDLE_READY
}

[ "${HYPERION_BUNDLE_READY:-}" = "$bundle" ] || bundle_prepare
