#!/usr/bin/env bash
# Makes dist/hyperion-VERSION-ARCH.tar.gz, a folder that runs anywhere with any Python's torch 2.11, without root, compiler or network, or
# with --wheel a package for pip. See docs/install.md.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/package.sh [--wheel [--arch aarch64]] [--no-build] [--into FOLDER] [--peer]
  --wheel     make FOLDER/hyperion_trainer-VERSION-py3-none-PLATFORM.whl instead of the archive
  --arch      make the wheel for that processor, cross-compiled in build-aarch64/
  --no-build  package what build/ holds
  --into      the folder of the archive; default: dist
  --peer      make only FOLDER/hyperion-peer.tar.gz: wheels of torchtitan 0.2.2 and what it needs, for gpu_check.sh --peer'
help_for "$usage" "$@"
highest_glibc=2.34 highest_glibcxx=3.4.29  # of RHEL 9, the oldest system that is served: that of the tag manylinux_2_34
largest_mib=30

build=$root/build dist=$root/dist build_first=yes peer=no wheel=no arch=$(uname -m) sysroot='' tools=''
while [ $# -gt 0 ]; do
  case $1 in
    --no-build) build_first=no ;;
    --peer) peer=yes ;;
    --wheel) wheel=yes ;;
    --arch)
      case ${2:-} in
        "$arch") ;;
        aarch64) arch=$2 build=$root/build-$2 sysroot=$(readlink -m "$root/build-$2/sysroot") tools=$2-linux-gnu- ;;
        *) fail "no package for '${2:-}' can be made" "$usage" ;;
      esac
      shift
      ;;
    --into)
      [ $# -gt 1 ] || fail "--into names no folder" "$usage"
      mkdir -p "$2"
      dist=$(cd "$2" && pwd)
      shift
      ;;
    *) fail "unknown argument '$1'" "$usage" ;;
  esac
  shift
done

# The wheels run with Python 3.12; torch, triton, tokenizers and safetensors are expected where they are used.
if [ $peer = yes ]; then
  wheels=$dist/hyperion-peer
  rm -rf "$wheels"
  mkdir -p "$wheels"
  retry "${HYPERION_PYTHON:-python3}" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --dest "$wheels" \
    torchtitan==0.2.2 torchao==0.18.0 tyro==1.0.17 docstring_parser==0.18.0 || fail "the wheels cannot be downloaded" "see pip's message above"
  tar -C "$dist" --sort=name --owner=0 --group=0 --numeric-owner -czf "$wheels.tar.gz" hyperion-peer
  say "$wheels.tar.gz: $(du -h "$wheels.tar.gz" | cut -f1)"
  exit 0
fi
[ -z "$sysroot" ] || [ $wheel = yes ] || fail "an archive is made for this machine's processor alone" "give --wheel as well"
if [ $build_first = yes ]; then
  "$root/scripts/setup.sh"
  if [ -z "$sysroot" ]; then
    "$root/scripts/build.sh" packaged
  else
    "$root/scripts/setup_aarch64.sh"
    "$root/scripts/build.sh" --preset aarch64 hyperion
  fi
fi
[ -x "$build/hyperion" ] || fail "there is no $build/hyperion" "run scripts/build.sh"
for tool in patchelf "${tools}strip" "${tools}objdump"; do
  command -v "$tool" >/dev/null || fail "$tool is not installed" "run scripts/setup.sh"
done

version=$(sed -n 's/^project(hyperion VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
name=hyperion-$version-$arch
[ $wheel = no ] || name=hyperion_trainer
stage=$dist/$name
[ $wheel = no ] || stage=$dist/wheel/$name
licenses=$stage/lib/licenses
[ $wheel = no ] || licenses=$stage/licenses
rm -rf "$stage"
mkdir -p "$stage"/{libexec,lib,scripts,tests/assets,data} "$licenses"

# --- programs ---------------------------------------------------------------------------------------------------------
programs=("$build/hyperion")
[ ! -e "$build/libhyperion_cuda.so" ] || programs+=("$build/libhyperion_cuda.so")
[ ! -e "$build/libhyperion_arrow.so" ] || programs+=("$build/libhyperion_arrow.so")
# The tests of the label gpu are described by ctest; their programs, the benchmarks that need a GPU and how all are started go
# into the bundle.
if [ $wheel = no ]; then
  while IFS= read -r program; do programs+=("$program"); done < <(
    python3 "$root/scripts/gpu_check.py" --list-gpu-tests "$build" --into "$stage/gpu_tests.json")
fi
for program in "${programs[@]}"; do
  copy=$stage/libexec/${program##*/}
  install -m 755 "$program" "$copy"
  "${tools}strip" --strip-unneeded "$copy"
  # the old kind of path (not RUNPATH) also serves the libraries of the bundle among themselves
  patchelf --force-rpath --set-rpath "\$ORIGIN/../lib" "$copy"
done

# --- the small libraries they need ------------------------------------------------------------------------------------
# Not libtorch and CUDA (they come with torch or the driver), and not what every system has.
everywhere='^(ld-linux.*|libc|libm|libdl|librt|libutil|libpthread|libstdc\+\+|libgcc_s|libgomp|libcuda|libnvidia.*)\.so'
copy_license() { cp -L "$sysroot/usr/share/doc/$1/copyright" "$licenses/$1"; }  # PACKAGE
owner() { dpkg-query --admindir="$sysroot/var/lib/dpkg" -S "$1" 2>/dev/null; }
libraries() {  # FILE...: paths of the libraries of Debian that they need, and that those need
  local known=' ' name path files=("$@") found
  while [ ${#files[@]} -gt 0 ]; do
    found=()
    while IFS= read -r name; do
      [[ $known != *" $name "* && ! $name =~ $everywhere ]] || continue
      known+="$name "
      for path in "$sysroot"/{usr/lib,lib}/"$arch-linux-gnu/$name"; do
        [ -e "$path" ] || continue
        echo "$path"
        found+=("$path")
        break
      done
    done < <("${tools}objdump" -p "${files[@]}" | awk '$1 == "NEEDED" { print $2 }' | sort -u)
    files=("${found[@]}")
  done
}
libraries "${programs[@]}" | while IFS= read -r library; do
  file=$(readlink -f "$library")
  install -m 644 "$file" "$stage/lib/${library##*/}"
  file=${file#"$sysroot"}
  package=$(owner "$file" || owner "${file#/usr}" || true)
  [ -n "$package" ] || fail "no Debian package owns $file, so its licence is not known" "install the library from Debian"
  copy_license "${package%%:*}"
done
for package in libcli11-dev libspdlog-dev libtoml11-dev libxxhash-dev nlohmann-json3-dev; do copy_license $package; done  # compiled in
if [ -e "$build/libhyperion_arrow.so" ]; then  # its headers are compiled in; its libraries come with the pyarrow of the user
  pyarrow=$(sed -n 's/^HYPERION_ARROW:PATH=//p' "$build/CMakeCache.txt")
  cat "$pyarrow"-*.dist-info/licenses/{LICENSE,NOTICE}.txt >"$licenses/pyarrow" || fail "the licence of $pyarrow is not beside it" "install pyarrow by pip"
fi

# --- everything else --------------------------------------------------------------------------------------------------
scripts=(launch.py restarts.py failures.py train.slurm slurm_rank.sh)
[ $wheel = yes ] || scripts+=(common.sh train.sh gpu_check.sh gpu_check.py gpu_checks.py gpu_card.py gpu_trace.py bounded_command.py
  bundle_environment.sh)
for script in "${scripts[@]}"; do
  install -m 755 "$root/scripts/$script" "$stage/scripts/$script"
done
install -m 644 -D -t "$stage/scripts/tracking" "$root"/scripts/tracking/*.py
cp -r "$root/configs" "$stage/"
cp -r "$root/tests/assets/tokenizer" "$stage/tests/assets/"
cp "$root"/data/*.jsonl.gz "$stage/data/"
if [ $wheel = yes ]; then
  cp "$root/LICENSE" "$licenses/hyperion"
  install -m 644 "$root/scripts/wheel/commands.py" "$stage/"
  : >"$stage/__init__.py"
else
  cp -r "$root/docs" "$root/README.md" "$root/LICENSE" "$stage/"
  install -m 644 -D "$root/benchmarks/torchtitan_gpu.py" "$stage/benchmarks/torchtitan_gpu.py"
  cat >"$stage/hyperion" <<'WRAPPER'
#!/bin/sh
# Hyperion's program, with the libtorch of an installed torch 2.11 (scripts/bundle_environment.sh).
bundle=$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd)
. "$bundle/scripts/bundle_environment.sh"
exec "$bundle/libexec/hyperion" "$@"
WRAPPER
  chmod 755 "$stage/hyperion"
fi

# --- what it needs of the system --------------------------------------------------------------------------------------
highest() {  # PREFIX: the highest version that any file asks for; texts have none
  { find "$stage" -type f -exec "${tools}objdump" -T {} + 2>/dev/null || true; } | sed -n "s/.*[( ]$1_\([0-9][0-9.]*\).*/\1/p" | sort -uV | tail -n 1
}
glibc=$(highest GLIBC) glibcxx=$(highest GLIBCXX)
needs="GLIBC $glibc, a C++ library with GLIBCXX $glibcxx"
not_above() { [ "$(printf '%s\n' "$1" "$2" | sort -V | tail -n 1)" = "$2" ]; }
not_above "$glibc" $highest_glibc || fail "a file needs GLIBC $glibc, more than $highest_glibc" "find it: objdump -T in $stage; make it on Debian 12"
not_above "$glibcxx" $highest_glibcxx ||
  fail "a file needs GLIBCXX $glibcxx, more than $highest_glibcxx" "find the symbol: objdump -T in $stage (base/condition_variable_wait.cpp)"
cuda=no parquet=no
[ ! -e "$stage/libexec/libhyperion_cuda.so" ] || cuda=yes
[ ! -e "$stage/libexec/libhyperion_arrow.so" ] || parquet=yes
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 315532800)}
export SOURCE_DATE_EPOCH
if [ $wheel = yes ]; then
  archive=$(python3 "$root/scripts/wheel/make_wheel.py" "$dist/wheel" "$version" "manylinux_${highest_glibc/./_}_$arch" "$dist")
else
  cat >"$stage/BUNDLE" <<END
Hyperion $version, commit $(git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown)
needs: $arch, any Python's torch 2.11, $needs
CUDA code: $cuda
reads Parquet and Arrow, with pyarrow 26.0.1: $parquet
END
  archive=$dist/$name.tar.gz
  tar -C "$dist" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cf - "$name" | gzip -9 >"$archive.new"
  mv "$archive.new" "$archive"
fi
size=$(stat -c %s "$archive")
say "it needs $needs"
say "CUDA code: $cuda"
say "reads Parquet and Arrow, with pyarrow 26.0.1: $parquet"
say "libraries brought along: $(find "$stage/lib" -maxdepth 1 -type f -printf '%f ')"
say "$archive: $(awk -v bytes="$size" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }') of at most $largest_mib MiB"
[ "$size" -le $((largest_mib << 20)) ] || fail "$archive is too large" "see what is in $stage"
