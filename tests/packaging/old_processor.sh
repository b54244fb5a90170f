#!/usr/bin/env bash
# Trains three steps on an emulated processor that has no AVX, and compares the losses with those of this one; runs the tests of products there.
#   tests/packaging/old_processor.sh        (label slow; needs qemu-user, from Debian; about a minute)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
command -v qemu-x86_64 >/dev/null || { echo "skipped: there is no qemu-x86_64 (Debian: apt-get install qemu-user)"; exit 77; }
[ "$(uname -m)" = x86_64 ] || { echo "skipped: this is no x86-64"; exit 77; }
into=$(mktemp -d)
trap 'rm -rf "$into"' EXIT
export OMP_NUM_THREADS=1 HYPERION_DEVICE=cpu

losses() {  # NAME [EMULATOR...]
  local name=$1
  shift
  "$@" build/hyperion train configs/debug_model.toml --job.dump_folder="$into/$name" --debug.seed=1 --training.steps=3 --training.seq_len=64 \
    --training.local_batch_size=1 >"$into/$name.log" 2>&1 || { cat "$into/$name.log"; exit 1; }
  sed -nE 's/.* step: +[0-9]+ +loss: +([0-9.]+) .*/\1/p' "$into/$name.log"
}
losses here >"$into/expected"
losses emulated qemu-x86_64 -cpu Nehalem >"$into/found"
grep -q 'with instructions "none"' "$into/emulated.log" || { echo "the emulated processor has AVX"; exit 1; }
paste "$into/expected" "$into/found"
paste "$into/expected" "$into/found" | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 0.01) bad = 1 } END { exit bad || NR != 3 }' ||
  { echo "these losses, here and emulated, are more than 0.01 apart, or not of three steps"; exit 1; }
qemu-x86_64 -cpu Nehalem build/test_models "products of our own*"
for instructions in avx2 avx512 avx512_bf16; do
  code=0
  HYPERION_CPU_INSTRUCTIONS=$instructions qemu-x86_64 -cpu Nehalem build/test_models "products of our own*" >"$into/skipped" || code=$?
  [ $code = 77 ] || { cat "$into/skipped"; echo "$instructions ended with $code, expected 77: skipped"; exit 1; }
done
echo "all passed"
