// A block finds the largest magnitudes of the columns of a tile of 256 x 64 numbers, for each group of rows
// in the tile. Each of its 256 threads reads 16 numbers of every 64th row. A warp's eight lines are reduced
// by shuffles, the warps in shared memory. The tile's maxima then raise those of the group, as bits:
// magnitudes are in the order of their bits, and NaN is above infinity.
#pragma once

#include "models/float8/cuda/cast_kernel.cuh"

namespace hyperion::float8 {

constexpr int kAmaxRows = 256, kWarp = 32, kWarps = kThreads / kWarp;

// Returns the first group that ends behind `row`, or the number of groups.
__device__ inline int group_at(const int32_t* ends, int groups, int64_t row) {
  int low = 0, high = groups;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (ends[middle] > row)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// T: float or __nv_bfloat16.
template <typename T>
__global__ void __launch_bounds__(kThreads) amax_of_groups(const GroupAmaxTask task) {
  __shared__ unsigned of_warps[kWarps * kTile];
  const auto column_tiles = static_cast<unsigned>((task.n + kTile - 1) / kTile);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x / column_tiles) * kAmaxRows;
  const int64_t last_row = first_row + kAmaxRows < task.m ? first_row + kAmaxRows : task.m;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x % column_tiles) * kTile;
  const int line = static_cast<int>(threadIdx.x) / kChunks;
  const int along = static_cast<int>(threadIdx.x) % kChunks * kChunk;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const bool inside = first_column + along < task.n;

  int64_t row = first_row;
  for (int group = group_at(task.ends, task.groups, row); group < task.groups && row < last_row; ++group) {
    const int64_t end = task.ends[group] < last_row ? task.ends[group] : last_row;
    if (end <= row) continue;  // an empty group
    unsigned largest[kChunk] = {};
    for (int64_t own = row + line; inside && own < end; own += kTile) {
      const Chunk<T> x = chunk_at(static_cast<const T*>(task.x) + own * task.stride + first_column + along);
      for (int i = 0; i < kChunk; ++i) {
        const unsigned bits = __float_as_uint(static_cast<float>(x.values[i])) & 0x7fffffffU;
        largest[i] = bits > largest[i] ? bits : largest[i];
      }
    }
    for (int i = 0; i < kChunk; ++i) {
      for (int distance = kChunks; distance < kWarp; distance *= 2) {
        const unsigned other = __shfl_xor_sync(0xffffffffU, largest[i], distance);
        largest[i] = other > largest[i] ? other : largest[i];
      }
      if (lane < kChunks) of_warps[warp * kTile + along + i] = largest[i];
    }
    __syncthreads();
    const int64_t column = first_column + threadIdx.x;
    if (threadIdx.x < kTile && column < task.n) {
      unsigned found = 0;
      for (int other = 0; other < kWarps; ++other) {
        const unsigned bits = of_warps[other * kTile + static_cast<int>(threadIdx.x)];
        found = bits > found ? bits : found;
      }
      atomicMax(task.amax + group * task.n + column, found);
    }
    __syncthreads();  // before the next group's maxima are written
    row = end;
  }
}

inline int64_t blocks_of(const GroupAmaxTask& task) {
  return (task.m + kAmaxRows - 1) / kAmaxRows * ((task.n + kTile - 1) / kTile);
}

}  // namespace hyperion::float8
