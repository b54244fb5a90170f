#!/usr/bin/env bash
# Loss curves of FP8 recipes compared with bf16: the debug model on the default corpus, the same tokens and initial weights for all. Writes
# docs/notes/float8_curves.png and the table of docs/notes/float8_curves.md; fails when a recipe's final smoothed loss is more than 1 % off.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage='usage: scripts/fp8_curves.sh [STEPS]   default 200; runs in outputs/fp8_curves that are complete are not repeated
  FP8 is emulated unless there is a GPU.
  HYPERION_JOBS=N          runs at a time on a CPU; default 2
  HYPERION_SKIP_SETUP=1    neither set up nor build'
help_for "$usage" "$@"
steps=${1:-200}
[[ $steps =~ ^[1-9][0-9]*$ ]] || fail "'$steps' is no number of steps" "$usage"
out=$root/outputs/fp8_curves
if [ "${HYPERION_SKIP_SETUP:-0}" != 1 ]; then
  "$root/scripts/setup.sh" --interop
  "$root/scripts/build.sh"
fi
python=${HYPERION_INTEROP_VENV:-$root/.venv-interop}/bin/python
binary=${HYPERION_BINARY:-$root/build/hyperion}

sequences=8 tokens=128
emulate=(--quantize.linear.float8.emulate) gemm="FP8 products emulated on a CPU"
jobs=${HYPERION_JOBS:-2}
if gpu_present && [ "${HYPERION_DEVICE:-auto}" != cpu ]; then emulate=() gemm="FP8 products on a GPU" jobs=1; fi
where="$sequences x $tokens tokens, one rank, seed 1, \`output\` left alone, $gemm"
float8=(--model.converters=quantize.linear.float8 --quantize.linear.float8.filter_fqns=output "${emulate[@]}")

run() {  # NAME OPTION...
  local name=$1 folder=$out/$1
  shift
  [ ! -e "$folder/metrics.jsonl" ] || [ "$(grep -c grad_norm "$folder/metrics.jsonl")" != "$steps" ] || return 0
  rm -rf "$folder"
  mkdir -p "$folder"
  echo "[fp8_curves] $name: $steps steps, output in $folder/log"
  OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} "$binary" train "$root/configs/debug_model.toml" --job.dump_folder="$folder" \
    --training.steps="$steps" --training.seq_len="$tokens" --training.local_batch_size="$sequences" --lr_scheduler.warmup_steps=20 \
    --metrics.log_freq=1 --debug.seed=1 "$@" > "$folder/log" 2>&1 || fail "$name ended with $?: $(tail -n 3 "$folder/log")" "read $folder/log"
}

runs=(
  "bf16"
  "tensorwise ${float8[*]}"
  "tensorwise_gather ${float8[*]} --quantize.linear.float8.enable_fsdp_float8_all_gather"
  "rowwise ${float8[*]} --quantize.linear.float8.recipe_name=rowwise"
  "rowwise_with_gw_hp ${float8[*]} --quantize.linear.float8.recipe_name=rowwise_with_gw_hp"
)
waiting=()
for words in "${runs[@]}"; do
  if [ ${#waiting[@]} -ge "$jobs" ]; then
    wait "${waiting[0]}"
    waiting=("${waiting[@]:1}")
  fi
  # shellcheck disable=SC2086  # words are options
  run $words &
  waiting+=($!)
done
for job in "${waiting[@]}"; do wait "$job"; done
exec "$python" "$root/scripts/fp8_curves.py" "$out" "$root/docs/notes" "$where"
