#!/usr/bin/env bash
# Runs what is compiled for aarch64 under an emulator: unit tests, and a training of two steps, compared with the same one here.
set -euo pipefail
usage='usage: tests/packaging/aarch64.sh [--into FOLDER] [UNIT_TEST...]     (default: test_base test_models test_checkpoint test_data)
  --into  the wheel, logs and figures; default: build-aarch64/tested
  Sets up and builds what is missing, half an hour of two cores without a compile cache, then some six minutes. Exit code 77 without qemu-aarch64 or build/hyperion.'
root=$(dirname "$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")")
into=$root/build-aarch64/tested
while [ $# -gt 0 ]; do
  case $1 in
    --into) into=${2:?$usage}; shift 2 ;;
    -h | --help) echo "$usage"; exit 0 ;;
    -*) echo "$usage" >&2; exit 2 ;;
    *) break ;;
  esac
done
tests=("$@")
[ ${#tests[@]} -gt 0 ] || tests=(test_base test_models test_checkpoint test_data)
if [ "$(uname -m)" = aarch64 ] || ! command -v qemu-aarch64 >/dev/null || [ ! -x "$root/build/hyperion" ]; then
  echo "SKIPPED: this needs another processor, qemu-aarch64 (Debian: apt-get install qemu-user) and build/hyperion"
  exit 77
fi
mkdir -p "$into"
into=$(readlink -f "$into")
# a processor without SVE, which is emulated many times slower
emulate=(qemu-aarch64 -cpu neoverse-n1 -L "$root/build-aarch64/sysroot")
"$root/scripts/setup_aarch64.sh"
"$root/scripts/build.sh" --preset aarch64 hyperion "${tests[@]}"

echo "=== the wheel"
"$root/scripts/package.sh" --wheel --arch aarch64 --no-build --into "$into"

echo "=== two steps in fp32 and in bf16, x86-64 and aarch64"
train() {  # NAME DTYPE COMMAND...
  local name=$1 dtype=$2
  shift 2
  rm -rf "${into:?}/$name"
  HYPERION_DEVICE=cpu HYPERION_CPU_INSTRUCTIONS=none OMP_NUM_THREADS=1 "$@" train debug_model --job.dump_folder="$into/$name" --debug.seed=1 \
    --training.mixed_precision_param="$dtype" --training.steps=2 --training.seq_len=64 --training.local_batch_size=2 \
    --comm.speed_check_seconds=0 --metrics.enable_jsonl >"$into/$name.log" 2>&1 || {
    tail "$into/$name.log"
    exit 1
  }
}
for dtype in float32 bfloat16; do
  train "x86_64_$dtype" $dtype "$root/build/hyperion"
  train "aarch64_$dtype" $dtype "${emulate[@]}" "$root/build-aarch64/hyperion"
done
# In fp32 the losses may differ by 1e-6 of their size, which is 8 units in the last place of what is printed; in bf16 by a rounding of a gradient.
python3 - "$into" <<'END'
import json, pathlib, sys
folder, bad = pathlib.Path(sys.argv[1]), False
for dtype, largest in (("float32", 1e-6), ("bfloat16", 1e-3)):
    rows = [[json.loads(line) for line in (folder / f"{arch}_{dtype}/metrics.jsonl").read_text().splitlines()] for arch in ("x86_64", "aarch64")]
    rows = [[line for line in lines if "grad_norm" in line] for lines in rows]
    assert [len(lines) for lines in rows] == [2, 2], rows
    for here, there in zip(*rows):
        a, b = here["loss_metrics/global_avg_loss"], there["loss_metrics/global_avg_loss"]
        print(f"{dtype} step {here['step']}: loss {a:.9f} and {b:.9f}, difference {abs(a - b) / a:.1e} of it; norm {here['grad_norm']:.9f} and {there['grad_norm']:.9f}")
        bad |= abs(a - b) > largest * a
sys.exit(bad)
END

for name in "${tests[@]}"; do
  echo "=== $name"
  (cd "$into" && "${emulate[@]}" "$root/build-aarch64/$name") >"$into/$name.log" 2>&1 || {
    grep -e FAILED -B 12 "$into/$name.log" | tail -n 60
    tail -n 3 "$into/$name.log"
    exit 1
  }
  tail -n 2 "$into/$name.log"
done
echo "all passed"
