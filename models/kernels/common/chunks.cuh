// The fused kernels share these helpers: accesses of up to 16 bytes, conversions, and sums over a block.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

namespace hyperion::kernels {

constexpr int kWarp = 32;
// A thread keeps kHeld chunks of a row in registers between two passes and reads the other chunks again.
constexpr int kHeld = 2;

// A chunk is loaded and stored with one access of 16 bytes, or of the chunk's size if that is smaller.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Chunk {
  T values[kCount];
};

template <int kCount, typename T>
__device__ inline Chunk<T, kCount> load(const T* from) {
  return *reinterpret_cast<const Chunk<T, kCount>*>(from);
}
template <int kCount, typename T>
__device__ inline void store(T* to, const Chunk<T, kCount>& chunk) {
  *reinterpret_cast<Chunk<T, kCount>*>(to) = chunk;
}

__device__ inline float widened(float x) {
  return x;
}
__device__ inline float widened(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

template <typename T>
__device__ inline T rounded(float x);
template <>
__device__ inline float rounded<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 rounded<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// Returns the sum of a number of each thread of the block, on every thread. Its order depends only on the
// block's size. All threads must call it.
__device__ inline float block_sum(float value) {
  __shared__ float of_warps[kWarp];
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xffffffffU, value, distance);
  __syncthreads();  // waits until the previous sum has been read
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) sum += of_warps[warp];
  return sum;
}

// Returns the number of threads of a block that shares `chunks` chunks of a row, `per_thread` for each thread
// if there are enough.
inline unsigned threads_for(int64_t chunks, int64_t per_thread, unsigned most) {
  const int64_t wanted = (chunks + per_thread - 1) / per_thread;
  const int64_t whole_warps = (wanted + kWarp - 1) / kWarp * kWarp;
  return whole_warps < kWarp ? kWarp : whole_warps > most ? most : static_cast<unsigned>(whole_warps);
}

}  // namespace hyperion::kernels
