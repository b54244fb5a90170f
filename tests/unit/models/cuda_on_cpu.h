// Runs the source of a CUDA kernel on CPU threads, block after block: its indices and its arithmetic are
// tested where there is no GPU, and its synchronisation under the thread sanitizer. Include before the
// kernel.
#pragma once

#include <barrier>
#include <thread>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>

#undef __global__
#undef __device__
#undef __shared__
#undef __launch_bounds__
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(threads)

inline thread_local uint3 threadIdx, blockIdx;
inline thread_local std::barrier<>* block_barrier = nullptr;

inline void __syncthreads() {
  block_barrier->arrive_and_wait();
}

namespace hyperion::models {

// kernel(arguments...) with `blocks` blocks of `threads` threads.
template <typename Kernel, typename... Arguments>
void run_blocks(unsigned blocks, unsigned threads, Kernel kernel, const Arguments&... arguments) {
  std::barrier<> barrier(threads);
  std::vector<std::jthread> running;
  for (unsigned thread = 0; thread < threads; ++thread)
    running.emplace_back([&, thread] {
      threadIdx = {thread, 0, 0};
      block_barrier = &barrier;
      for (unsigned block = 0; block < blocks; ++block) {
        blockIdx = {block, 0, 0};
        kernel(arguments...);
        barrier.arrive_and_wait();  // shared memory is one block's at a time
      }
    });
}

}  // namespace hyperion::models
