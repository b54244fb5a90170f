// A block of threads sums the rows of a token, and each thread kPackedEach elements at a time: a packed block
// is that of kThreadsOfBlock neighbours in a warp, which find its largest element together.
#pragma once

#include <cmath>

#include "models/kernels/common/plan.cuh"
#include "models/kernels/packed_sums/packed_block.h"
#include "models/kernels/packed_sums/task.h"

namespace hyperion::kernels {

constexpr unsigned kPackedThreads = 256;
constexpr int kPackedEach = 8, kThreadsOfBlock = kPackedBlock / kPackedEach;

// Adds elements [at, at + kPackedEach) of a row of n, times `weight`. Those behind the row count as zeros.
template <typename T, int kChunk>
__device__ inline void add_elements(const T* row, int64_t at, int64_t n, float weight, float* sums) {
  for (int first = 0; first < kPackedEach; first += kChunk) {
    if (at + first >= n) return;
    const auto x = load<kChunk>(row + at + first);
    for (int i = 0; i < kChunk; ++i) sums[first + i] += weight * widened(x.values[i]);
  }
}

template <typename T, int kChunk>
__global__ void __launch_bounds__(kPackedThreads) pack_sum_of_token(const PackRowSumsTask task) {
  const int64_t token = blockIdx.x, blocks = (task.n + kPackedBlock - 1) / kPackedBlock;
  auto* const numbers = reinterpret_cast<int16_t*>(task.out + token * task.row_bytes);
  auto* const scales = reinterpret_cast<float*>(numbers + blocks * kPackedBlock);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * kPackedEach;
  // All lanes of a warp stay in the loop.
  for (int64_t of_warp = static_cast<int64_t>(threadIdx.x - lane) * kPackedEach; of_warp < task.n;
       of_warp += stride) {
    const int64_t at = of_warp + lane * kPackedEach;
    float sums[kPackedEach] = {};
    for (int k = 0; k < task.top_k; ++k) {
      const float weight = task.weights[token * task.top_k + k];
      if (weight == 0) continue;
      const T* const row = static_cast<const T*>(task.in) + task.rows[token * task.top_k + k] * task.n;
      add_elements<T, kChunk>(row, at, task.n, weight, sums);
    }
    float largest = 0;
    for (int i = 0; i < kPackedEach; ++i) largest = larger_or_nan(largest, sums[i] < 0 ? -sums[i] : sums[i]);
    for (int distance = kThreadsOfBlock / 2; distance > 0; distance /= 2)
      largest = larger_or_nan(largest, __shfl_xor_sync(0xffffffffU, largest, distance));
    if (at >= blocks * kPackedBlock) continue;
    const PackedScale scale(largest);
    Chunk<int16_t, kPackedEach> packed;
    for (int i = 0; i < kPackedEach; ++i) packed.values[i] = scale.packed(sums[i]);
    store<kPackedEach>(numbers + at, packed);
    if (lane % kThreadsOfBlock == 0) scales[at / kPackedBlock] = scale.scale;
  }
}

template <typename T, int kChunk>
__global__ void __launch_bounds__(kPackedThreads) sum_packed_rows_of_token(const SumPackedRowsTask task) {
  const int64_t token = blockIdx.x, blocks = (task.n + kPackedBlock - 1) / kPackedBlock;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * kPackedEach;
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * kPackedEach; at < task.n; at += stride) {
    float sums[kPackedEach] = {};
    for (int k = 0; k < task.top_k; ++k) {
      const float weight = task.weights[token * task.top_k + k];
      if (weight == 0) continue;
      const auto* const numbers =
          reinterpret_cast<const int16_t*>(task.in + task.rows[token * task.top_k + k] * task.row_bytes);
      const float scale = reinterpret_cast<const float*>(numbers + blocks * kPackedBlock)[at / kPackedBlock];
      const auto packed = load<kPackedEach>(numbers + at);
      for (int i = 0; i < kPackedEach; ++i)
        sums[i] += weight * (scale * static_cast<float>(packed.values[i]));
    }
    if (task.added != nullptr)
      add_elements<T, kChunk>(static_cast<const T*>(task.added) + token * task.n, at, task.n, 1.0f, sums);
    for (int first = 0; first < kPackedEach && at + first < task.n; first += kChunk) {
      Chunk<T, kChunk> out;
      for (int i = 0; i < kChunk; ++i) out.values[i] = rounded<T>(sums[first + i]);
      store<kChunk>(static_cast<T*>(task.out) + token * task.n + at + first, out);
    }
  }
}

// A row of n elements is of whole chunks, or is read element by element.
template <typename Task, typename Run>
cudaError_t run_packed(const Variants<Task>& variants, const Task& task, Element element, bool alignment,
                       const Run& run) {
  const int chunk = alignment && divides(chunk_of(element), {task.n}) ? chunk_of(element) : 1;
  return run(variants.of(element, chunk), task, task.tokens,
             threads_for((task.n + kPackedEach - 1) / kPackedEach, 2, kPackedThreads));
}

template <typename Run>
cudaError_t plan(const PackRowSumsTask& task, Element element, const Run& run) {
  const auto variants = variants_of<PackRowSumsTask>(
      [](auto x, auto chunk) { return pack_sum_of_token<decltype(x), decltype(chunk)::value>; });
  return run_packed(variants, task, element, aligned({task.in}), run);
}

template <typename Run>
cudaError_t plan(const SumPackedRowsTask& task, Element element, const Run& run) {
  const auto variants = variants_of<SumPackedRowsTask>(
      [](auto x, auto chunk) { return sum_packed_rows_of_token<decltype(x), decltype(chunk)::value>; });
  return run_packed(variants, task, element, aligned({task.added, task.out}), run);
}

}  // namespace hyperion::kernels
