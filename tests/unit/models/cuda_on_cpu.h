// Runs the source of a CUDA kernel on CPU threads, block after block: its indices and its arithmetic are
// tested where there is no GPU, and its synchronisation under the thread sanitizer. Include before the
// kernel.
#pragma once

#include <algorithm>
#include <array>
#include <barrier>
#include <bit>
#include <cmath>
#include <deque>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>

#include "models/kernels/common/launch.h"

#undef __global__
#undef __device__
#undef __shared__
#undef __launch_bounds__
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)

inline thread_local uint3 threadIdx, blockIdx, blockDim;
inline thread_local std::barrier<>*block_barrier = nullptr, *warp_barrier = nullptr;

inline void __syncthreads() {
  block_barrier->arrive_and_wait();
}

// Of all 32 threads of a warp.
template <typename T>
T __shfl_xor_sync(unsigned /*mask*/, T value, int distance) {
  static std::array<T, 1024> of_threads;
  of_threads.at(threadIdx.x) = value;
  warp_barrier->arrive_and_wait();
  const T other = of_threads.at(threadIdx.x ^ static_cast<unsigned>(distance));
  warp_barrier->arrive_and_wait();
  return other;
}

inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}

// One thread of a block calls it, and blocks run one after the other.
inline unsigned atomicMax(unsigned* shared, unsigned value) {
  return std::exchange(*shared, std::max(*shared, value));
}

inline float rsqrtf(float x) {
  return 1.0F / std::sqrt(x);
}

namespace hyperion::models {

// kernel(arguments...) with `blocks` blocks of `threads` threads.
template <typename Kernel, typename... Arguments>
void run_blocks(unsigned blocks, unsigned threads, Kernel kernel, const Arguments&... arguments) {
  std::barrier<> barrier(threads);
  std::deque<std::barrier<>> warps;
  for (unsigned first = 0; first < threads; first += 32) warps.emplace_back(std::min(threads - first, 32U));
  std::vector<std::jthread> running;
  for (unsigned thread = 0; thread < threads; ++thread)
    running.emplace_back([&, thread] {
      threadIdx = {thread, 0, 0};
      blockDim = {threads, 1, 1};
      block_barrier = &barrier;
      warp_barrier = &warps.at(thread / 32);
      for (unsigned block = 0; block < blocks; ++block) {
        blockIdx = {block, 0, 0};
        kernel(arguments...);
        barrier.arrive_and_wait();  // shared memory is one block's at a time
      }
    });
}

// `launch` of the fused kernels: with the blocks and threads that their plan asks for.
struct OnThreads {
  template <typename Task>
  void operator()(const Task& task, kernels::Element element) const {
    const auto run = [](void (*kernel)(Task), const Task& given, int64_t blocks, unsigned threads) {
      run_blocks(static_cast<unsigned>(blocks), threads, kernel, given);
      return cudaSuccess;
    };
    if (plan(task, element, run) != cudaSuccess) throw std::runtime_error("a plan that cannot be launched");
  }
};
inline constexpr OnThreads kOnThreads;

}  // namespace hyperion::models
