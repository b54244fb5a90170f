// A thread multiplies 8 numbers of a row by the factors of their row and of their columns, in one pass.
#pragma once

#include <cuda_bf16.h>

#include "models/float8/cuda/launch.h"

namespace hyperion::float8 {

constexpr int kRescaleThreads = 256, kRescaleChunk = 8;

// Rounded to bf16 after either factor, as two products in a row are.
__device__ inline __nv_bfloat16 rescaled(__nv_bfloat16 x, float row, float column) {
  const __nv_bfloat16 once = __float2bfloat16_rn(__bfloat162float(x) * row);
  return __float2bfloat16_rn(__bfloat162float(once) * column);
}

__global__ void __launch_bounds__(kRescaleThreads) rescale_chunk(const RescaleTask task) {
  struct alignas(16) Chunk {  // moves as a load and a store of 16 bytes
    __nv_bfloat16 values[kRescaleChunk];
  };
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * kRescaleThreads + threadIdx.x) * kRescaleChunk;
  if (first >= task.m * task.n) return;
  const int64_t row = first / task.n, column = first % task.n;
  const float by_row = task.row[task.each_row ? row : 0];
  Chunk& chunk = reinterpret_cast<Chunk*>(task.product)[first / kRescaleChunk];
  Chunk result = chunk;
  for (int i = 0; i < kRescaleChunk; ++i)
    result.values[i] = rescaled(result.values[i], by_row, task.column[task.each_column ? column + i : 0]);
  chunk = result;
}

inline int64_t blocks_of(const RescaleTask& task) {
  constexpr int64_t kBlock = int64_t{kRescaleThreads} * kRescaleChunk;
  return (task.m * task.n + kBlock - 1) / kBlock;
}

}  // namespace hyperion::float8
