// A block casts a tile of 64 x 64 numbers. Each of its 256 threads reads 16 numbers of a row, writes 16 bytes
// of the row-major copy, and stores the numbers of the column-major copy in shared memory, from which it then
// writes 16 of a column. Every block computes the scales of its tile from amaxes. The blocks of the first
// column of tiles write the scales of rows, those of the first row the scales of columns.
#pragma once

#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "models/float8/cuda/launch.h"
#include "models/float8/cuda/scale_kernel.cuh"

namespace hyperion::float8 {

constexpr int kTile = 64, kChunk = 16, kChunks = kTile / kChunk, kThreads = kTile * kChunks;

// A chunk is loaded and stored with one access of 16 bytes.
template <typename T>
struct alignas(16) Chunk {
  T values[kChunk];
};
using Bytes = Chunk<uint8_t>;

template <typename T>
__device__ inline Chunk<T>& chunk_at(T* first) {
  return *reinterpret_cast<Chunk<T>*>(first);
}
template <typename T>
__device__ inline const Chunk<T>& chunk_at(const T* first) {
  return *reinterpret_cast<const Chunk<T>*>(first);
}

// Returns the offset of an element of the tile in shared memory. The chunks of a row are permuted every 16
// rows, so that the threads of a warp have no bank conflicts, whether they write along rows or read along
// columns.
__device__ inline int place(int row, int column) {
  return row * kTile + ((column / kChunk) ^ (row / kChunk)) * kChunk + column % kChunk;
}

// Returns scale `index` of a copy. writes: whether this block stores a scale that it computes.
__device__ inline float scale_at(const CastTask& task, const CastScales& scales, int64_t index, bool writes) {
  if (scales.scale != nullptr) return scales.scale[index];
  const float amax = scales.amax_is_bf16
                         ? static_cast<float>(static_cast<const __nv_bfloat16*>(scales.amax)[index])
                         : static_cast<const float*>(scales.amax)[index];
  const float scale = scale_for(amax, task.largest, task.power_of_two);
  if (writes) {
    scales.made_scale[index] = scale;
    scales.made_inverse[index] = 1.0f / scale;
  }
  return scale;
}

// Reads the scales of a tile with its first threads: [kTile] for each copy, or the first only.
__device__ inline void read_scales(const CastTask& task, int64_t first_row, int64_t first_column, float* rows,
                                   float* columns) {
  const int line = static_cast<int>(threadIdx.x) % kTile;
  const bool of_columns = threadIdx.x >= kTile;
  if (threadIdx.x >= 2 * kTile || (of_columns ? task.columns : task.rows) == nullptr) return;
  if (of_columns && (task.groups != nullptr || task.stack_rows > 0)) return;  // read where they are
  const CastScales& scales = of_columns ? task.column_scales : task.row_scales;
  const int64_t index = scales.each ? (of_columns ? first_column : first_row) + line : 0;
  if (scales.each ? index >= (of_columns ? task.n : task.m) : line != 0) return;
  const bool first_tiles = of_columns ? first_row == 0 : first_column == 0;
  const bool writes = scales.each ? first_tiles : blockIdx.x == 0;
  (of_columns ? columns : rows)[line] = scale_at(task, scales, index, writes);
}

// The product is rounded to fp32; then SATFINITE is the clamp, and NaN stays NaN. scale: kChunk of them, or
// one where the step is 0.
template <typename T, __nv_fp8_interpretation_t kFormat>
__device__ inline Bytes converted(const Chunk<T>& x, const float* scale, int step) {
  Bytes bytes;
  for (int i = 0; i < kChunk; i += 2) {
    const float2 scaled = {static_cast<float>(x.values[i]) * scale[i * step],
                           static_cast<float>(x.values[i + 1]) * scale[(i + 1) * step]};
    const __nv_fp8x2_storage_t pair = __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, kFormat);
    bytes.values[i] = static_cast<uint8_t>(pair & 0xff);
    bytes.values[i + 1] = static_cast<uint8_t>(pair >> 8);
  }
  return bytes;
}

// T: float, __nv_bfloat16, or uint8_t for numbers that are FP8 already.
template <typename T, __nv_fp8_interpretation_t kFormat>
__global__ void __launch_bounds__(kThreads) cast_tile(const CastTask task) {
  __shared__ Bytes tile[kTile * kChunks];
  __shared__ float row_scales[kTile], column_scales[kTile];
  uint8_t* const bytes = tile[0].values;
  const auto column_tiles = static_cast<unsigned>((task.n + kTile - 1) / kTile);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x / column_tiles) * kTile;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x % column_tiles) * kTile;
  const int line = static_cast<int>(threadIdx.x) / kChunks;
  const int along = static_cast<int>(threadIdx.x) % kChunks * kChunk;

  Bytes for_columns = {};  // zeros below the last row
  const int64_t row = first_row + line, column = first_column + along;
  const bool inside = row < task.m && column < task.n;
  const int64_t offset = row * task.n + column;
  Chunk<T> x = {};
  if (inside)  // on its way while scales are made
    x = chunk_at(static_cast<const T*>(task.x) + row * task.stride + column);
  if constexpr (std::is_same_v<T, uint8_t>) {
    for_columns = x;
  } else {
    read_scales(task, first_row, first_column, row_scales, column_scales);
    __syncthreads();
    if (inside && task.rows != nullptr)
      chunk_at(task.rows + offset) =
          converted<T, kFormat>(x, row_scales + (task.row_scales.each ? line : 0), /*step=*/0);
    if (inside && task.columns != nullptr && (task.groups != nullptr || task.stack_rows > 0)) {
      const int64_t group = task.groups != nullptr ? task.groups[row] : row / task.stack_rows;
      for_columns = converted<T, kFormat>(x, task.column_scales.scale + group * task.n + column, /*step=*/1);
    } else if (inside && task.columns != nullptr)
      for_columns = task.column_scales.each ? converted<T, kFormat>(x, column_scales + along, /*step=*/1)
                                            : converted<T, kFormat>(x, column_scales, /*step=*/0);
  }
  if (task.columns == nullptr) return;
  chunk_at(bytes + place(line, along)) = for_columns;
  __syncthreads();

  const int64_t own_column = first_column + line, own_row = first_row + along;
  if (own_column >= task.n || own_row >= task.padded_m) return;
  Bytes down;
  for (int i = 0; i < kChunk; ++i) down.values[i] = bytes[place(along + i, line)];
  int64_t offset_down = own_column * task.padded_m + own_row;
  if (task.stack_rows > 0)
    offset_down =
        (own_row / task.stack_rows * task.n + own_column) * task.stack_rows + own_row % task.stack_rows;
  chunk_at(task.columns + offset_down) = down;
}

// Returns the number of tiles of x; each is a block.
inline int64_t tiles_of(const CastTask& task) {
  return (task.m + kTile - 1) / kTile * ((task.n + kTile - 1) / kTile);
}

}  // namespace hyperion::float8
