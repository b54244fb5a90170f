// A thread block casts a tile of 64 x 64 numbers in blocks of 32, along rows and along columns. It reads the
// tile into shared memory; each of 128 threads then casts a block of a row and a block of a column.
#pragma once

#include <cmath>
#include <cstdint>

#include "models/float8/cuda/cast_kernel.cuh"

namespace hyperion::float8 {

constexpr int kMxBlock = 32, kMxThreads = 2 * kTile;
// The rows of the tile have a stride with few bank conflicts, for reads along rows and along columns.
constexpr int kMxPitch = kTile + 1;

// The bits of a block's scale (a power of two and 127; 255: NaN), and what its numbers are multiplied by.
struct MxScale {
  uint8_t bits;
  float factor;
};

// Returns the scale that plain::cast_blocks() makes (models/float8/blocks.cpp). Rounding up is exact here,
// where log2 in fp32 may take a number just above a power of two for the power.
__device__ inline MxScale mx_scale_of(float largest, bool rounds_up) {
  const float ratio = rounds_up ? largest / 448.0f : largest;
  const int exponent = static_cast<int>(__builtin_bit_cast(uint32_t, ratio) >> 23 & 0xff);
  if (ratio != ratio) return {255, rounds_up ? ratio : 0.0f};
  if (!rounds_up) {
    const int bits = exponent > 8 ? exponent - 8 : 0;
    // The smallest normal number stands for what is below it.
    return {static_cast<uint8_t>(bits), ldexpf(1.0f, 127 - (bits > 1 ? bits : 1))};
  }
  if (exponent == 255) return {254, ldexpf(1.0f, -127)};
  int power;  // ceil(log2(ratio))
  if (ratio == 0) {
    power = -127;
  } else {
    const float fraction = frexpf(ratio, &power);  // in [1/2, 1)
    if (fraction == 0.5f) --power;
  }
  const int bits = power < -127 ? 0 : power + 127;
  return {static_cast<uint8_t>(bits), bits == 0 ? 1.0f : ldexpf(1.0f, 127 - bits)};
}

// A block of the tile, `step` numbers apart, as 32 bytes; returns the bits of its scale.
__device__ inline uint8_t cast_mx_block(const float* numbers, int step, bool rounds_up, Bytes* bytes) {
  float largest = 0;
  for (int i = 0; i < kMxBlock; ++i) {
    const float magnitude = fabsf(numbers[i * step]);
    largest = magnitude > largest || magnitude != magnitude ? magnitude : largest;
    if (magnitude != magnitude) break;
  }
  const MxScale scale = mx_scale_of(largest, rounds_up);
  for (int i = 0; i < kMxBlock; i += 2) {
    const float2 pair = {numbers[i * step] * scale.factor, numbers[(i + 1) * step] * scale.factor};
    const __nv_fp8x2_storage_t both = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
    Bytes& half = bytes[i / kChunk];
    half.values[i % kChunk] = static_cast<uint8_t>(both & 0xff);
    half.values[i % kChunk + 1] = static_cast<uint8_t>(both >> 8);
  }
  return scale.bits;
}

// T: float or __nv_bfloat16.
template <typename T>
__global__ void __launch_bounds__(kMxThreads) cast_mx_tile(const MxTask task) {
  __shared__ float tile[kTile * kMxPitch];
  const auto column_tiles = static_cast<unsigned>((task.n + kTile - 1) / kTile);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x / column_tiles) * kTile;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x % column_tiles) * kTile;
  for (int part = static_cast<int>(threadIdx.x); part < kTile * kChunks; part += kMxThreads) {
    const int line = part / kChunks, along = part % kChunks * kChunk;
    const int64_t row = first_row + line, column = first_column + along;
    Chunk<T> x = {};
    if (row < task.m && column < task.n) x = chunk_at(static_cast<const T*>(task.x) + row * task.n + column);
    for (int i = 0; i < kChunk; ++i) tile[line * kMxPitch + along + i] = static_cast<float>(x.values[i]);
  }
  __syncthreads();

  const int line = static_cast<int>(threadIdx.x) % kTile;
  const int first = static_cast<int>(threadIdx.x) / kTile * kMxBlock;
  Bytes bytes[kMxBlock / kChunk];
  const int64_t row = first_row + line, column = first_column + first;
  if (task.rows != nullptr && row < task.m && column < task.n) {
    const uint8_t scale = cast_mx_block(tile + line * kMxPitch + first, 1, task.rounds_up, bytes);
    task.row_scales[row * (task.n / kMxBlock) + column / kMxBlock] = scale;
    for (int i = 0; i < kMxBlock / kChunk; ++i)
      chunk_at(task.rows + row * task.n + column + i * kChunk) = bytes[i];
  }
  const int64_t own_column = first_column + line, own_row = first_row + first;
  if (task.columns != nullptr && own_column < task.n && own_row < task.padded_m) {
    const uint8_t scale = cast_mx_block(tile + first * kMxPitch + line, kMxPitch, task.rounds_up, bytes);
    task.column_scales[own_column * (task.padded_m / kMxBlock) + own_row / kMxBlock] = scale;
    for (int i = 0; i < kMxBlock / kChunk; ++i)
      chunk_at(task.columns + own_column * task.padded_m + own_row + i * kChunk) = bytes[i];
  }
}

// Returns the number of tiles of x; each is a thread block.
inline int64_t tiles_of(const MxTask& task) {
  return (task.m + kTile - 1) / kTile * ((task.n + kTile - 1) / kTile);
}

}  // namespace hyperion::float8
