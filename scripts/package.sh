#!/usr/bin/env bash
# Makes dist/hyperion-VERSION-ARCH.tar.gz: a folder that runs anywhere with any Python's torch 2.11, without root,
# compiler or network. See docs/operations.md.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/package.sh [--no-build] [--into FOLDER] [--peer]
  --no-build  package what build/ holds
  --into      the folder of the archive; default: dist
  --peer      make only FOLDER/hyperion-peer.tar.gz: wheels of torchtitan 0.2.2 and what it needs, for gpu_check.sh --peer'
help_for "$usage" "$@"
highest_glibc=2.36 highest_glibcxx=3.4.30  # of Debian 12: a bundle made on a newer system would not run there
largest_mib=30

build=$root/build dist=$root/dist build_first=yes peer=no
while [ $# -gt 0 ]; do
  case $1 in
    --no-build) build_first=no ;;
    --peer) peer=yes ;;
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
if [ $build_first = yes ]; then
  "$root/scripts/setup.sh"
  "$root/scripts/build.sh"
fi
[ -x "$build/hyperion" ] || fail "there is no $build/hyperion" "run scripts/build.sh"
for tool in patchelf strip objdump; do
  command -v $tool >/dev/null || fail "$tool is not installed" "run scripts/setup.sh"
done

version=$(sed -n 's/^project(hyperion VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
name=hyperion-$version-$(uname -m)
stage=$dist/$name
rm -rf "$stage"
mkdir -p "$stage"/{libexec,lib/fallback,lib/licenses,scripts,benchmarks,tests/assets}

# --- programs ---------------------------------------------------------------------------------------------------------
# The tests of the label gpu are described by ctest; their programs, the benchmarks that need a GPU and how all are started go
# into the bundle.
programs=("$build/hyperion")
[ ! -e "$build/libhyperion_cuda.so" ] || programs+=("$build/libhyperion_cuda.so")
while IFS= read -r program; do programs+=("$program"); done < <(
  python3 "$root/scripts/gpu_check.py" --list-gpu-tests "$build" --into "$stage/gpu_tests.json")

for program in "${programs[@]}"; do
  copy=$stage/libexec/${program##*/}
  install -m 755 "$program" "$copy"
  strip --strip-unneeded "$copy"
  # the old kind of path (not RUNPATH) also serves the libraries of the bundle among themselves
  patchelf --force-rpath --set-rpath "\$ORIGIN/../lib" "$copy"
done

# --- the small libraries they need ------------------------------------------------------------------------------------
# Not libtorch and CUDA (they come with torch or the driver), and not what every system has.
everywhere='^(ld-linux.*|libc|libm|libdl|librt|libutil|libpthread|libstdc\+\+|libgcc_s|libgomp|libcuda|libnvidia.*)\.so'
copy_library() {  # PATH FOLDER, with its licence
  local package
  install -m 644 "$(readlink -f "$1")" "$2/${1##*/}"
  package=$(dpkg -S "$(readlink -f "$1")" 2>/dev/null || dpkg -S "$(readlink -f "$1" | sed 's,^/usr,,')" 2>/dev/null || true)
  package=${package%%:*}
  [ -n "$package" ] || fail "no Debian package owns $1, so its licence is not known" "install the library from Debian"
  cp -L "/usr/share/doc/$package/copyright" "$stage/lib/licenses/$package"
}
for program in "${programs[@]}"; do ldd "$program"; done |
  awk '$2 == "=>" && $3 ~ /^\/(usr\/)?lib\// { print $3 }' | sort -u | while IFS= read -r library; do
  [[ ${library##*/} =~ $everywhere ]] || copy_library "$library" "$stage/lib"
done
for library in libstdc++.so.6 libgcc_s.so.1; do
  copy_library "$(g++ -print-file-name=$library)" "$stage/lib/fallback"
done

# --- everything else --------------------------------------------------------------------------------------------------
for script in common.sh train.sh launch.py failures.py train.slurm slurm_rank.sh gpu_check.sh gpu_check.py gpu_checks.py gpu_card.py \
  gpu_trace.py bounded_command.py bundle_environment.sh; do
  install -m 755 "$root/scripts/$script" "$stage/scripts/$script"
done
install -m 644 "$root/benchmarks/torchtitan_gpu.py" "$stage/benchmarks/"
for part in configs docs README.md LICENSE; do
  if [ -e "$root/$part" ]; then cp -r "$root/$part" "$stage/"; fi
done
if [ -d "$root/tests/assets/tokenizer" ]; then cp -r "$root/tests/assets/tokenizer" "$stage/tests/assets/"; fi
mkdir "$stage/data"
cp "$root"/data/*.jsonl.gz "$stage/data/"

cat >"$stage/hyperion" <<'WRAPPER'
#!/bin/sh
# Hyperion's program, with the libtorch of an installed torch 2.11 (scripts/bundle_environment.sh).
bundle=$(CDPATH='' cd -- "$(dirname -- "$(readlink -f -- "$0")")" && pwd)
. "$bundle/scripts/bundle_environment.sh"
exec "$bundle/libexec/hyperion" "$@"
WRAPPER
chmod 755 "$stage/hyperion"

# --- what it needs of the system --------------------------------------------------------------------------------------
highest() {  # PREFIX FIND_ARGUMENT...: the highest version that any of these files asks for; texts have none
  { find "${@:2}" -type f -exec objdump -T {} + 2>/dev/null || true; } | sed -n "s/.*[( ]$1_\([0-9][0-9.]*\).*/\1/p" | sort -uV | tail -n 1
}
glibc=$(highest GLIBC "$stage")
# The C++ library in lib/fallback is loaded only where the system's is too old, and asks for more than the rest.
ours=("$stage/libexec" "$stage/lib" -maxdepth 1)
own_glibc=$(highest GLIBC "${ours[@]}") glibcxx=$(highest GLIBCXX "${ours[@]}")
needs="GLIBC $glibc; GLIBC $own_glibc where the system's C++ library has GLIBCXX $glibcxx"
not_above() { [ "$(printf '%s\n' "$1" "$2" | sort -V | tail -n 1)" = "$2" ]; }
not_above "$glibc" $highest_glibc || fail "the bundle needs GLIBC $glibc" "make it on Debian 12 (GLIBC $highest_glibc)"
not_above "$glibcxx" $highest_glibcxx || fail "the bundle needs GLIBCXX $glibcxx" "make it on Debian 12 (GLIBCXX $highest_glibcxx)"
cat >"$stage/BUNDLE" <<END
Hyperion $version, commit $(git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown)
needs: $(uname -m), any Python's torch 2.11, $needs
CUDA code: $([ -e "$stage/libexec/libhyperion_cuda.so" ] && echo yes || echo no)
END

archive=$dist/$name.tar.gz
tar -C "$dist" --sort=name --owner=0 --group=0 --numeric-owner -cf - "$name" | gzip -9 >"$archive.new"
mv "$archive.new" "$archive"
size=$(stat -c %s "$archive")
say "it needs $needs (the bundle brings a C++ library for systems with an older one)"
say "libraries brought along: $(find "$stage/lib" -maxdepth 1 -type f -printf '%f ')"
say "$archive: $(awk -v bytes="$size" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }') of at most $largest_mib MiB"
[ "$size" -le $((largest_mib << 20)) ] || fail "the bundle is too large" "see what is in it: tar -tvzf $archive | sort -k3 -n"
