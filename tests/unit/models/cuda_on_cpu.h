// Runs the source of a CUDA kernel on a CPU, block after block: its indices and its arithmetic are
// tested where there is no GPU, and its synchronisation under the thread sanitizer. Include before the
// kernel.
#pragma once

#include <algorithm>
#include <array>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>
#include <ucontext.h>

#include "models/kernels/common/launch.h"

#undef __global__
#undef __device__
#undef __shared__
#undef __launch_bounds__
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define HYPERION_GPU_THREADS_ARE_THREADS  // whose races the sanitizer sees
#endif

inline thread_local uint3 threadIdx, blockIdx, blockDim;

namespace hyperion::models {

#ifdef HYPERION_GPU_THREADS_ARE_THREADS

using BlockBarrier = std::barrier<>;
inline thread_local BlockBarrier *block_barrier = nullptr, *warp_barrier = nullptr;

#else

class BlockBarrier {
 public:
  explicit BlockBarrier(unsigned threads) : threads_(threads) {}
  void arrive_and_wait();

 private:
  unsigned threads_, arrived_ = 0, round_ = 0;
};
inline BlockBarrier *block_barrier = nullptr, *warp_barrier = nullptr;

// A block's threads are contexts of one thread of the host, one of which runs until it waits for others: as
// threads of the host they would take most of the time to wake each other.
struct Turns {
  struct Context {
    ucontext_t state;
    std::unique_ptr<std::byte[]> stack;
    bool ended = false;
  };
  std::vector<Context> threads;
  std::deque<BlockBarrier> warps;
  ucontext_t host;
  std::function<void()> run;  // the life of a thread

  void take(unsigned thread);
  unsigned next() const;  // that has not ended; of one that is alone, or of none, itself
};
inline Turns* turns = nullptr;

inline void BlockBarrier::arrive_and_wait() {
  const unsigned round = round_;
  if (++arrived_ == threads_) {
    arrived_ = 0;
    ++round_;
  }
  while (round_ == round) {
    const unsigned self = threadIdx.x, other = turns->next();
    turns->take(other);
    swapcontext(&turns->threads[self].state, &turns->threads[other].state);
  }
}

inline void Turns::take(unsigned thread) {
  threadIdx.x = thread;
  warp_barrier = &warps[thread / 32];
}

inline unsigned Turns::next() const {
  unsigned other = threadIdx.x;
  do other = (other + 1) % static_cast<unsigned>(threads.size());
  while (threads[other].ended && other != threadIdx.x);
  return other;
}

inline void live_as_thread() {
  turns->run();
  turns->threads[threadIdx.x].ended = true;
  const unsigned other = turns->next();
  if (turns->threads[other].ended) setcontext(&turns->host);
  turns->take(other);
  setcontext(&turns->threads[other].state);
}

#endif

}  // namespace hyperion::models

inline void __syncthreads() {
  hyperion::models::block_barrier->arrive_and_wait();
}

// Of all 32 threads of a warp.
template <typename T>
T __shfl_xor_sync(unsigned /*mask*/, T value, int distance) {
  static std::array<T, 1024> of_threads;
  of_threads.at(threadIdx.x) = value;
  hyperion::models::warp_barrier->arrive_and_wait();
  const T other = of_threads.at(threadIdx.x ^ static_cast<unsigned>(distance));
  hyperion::models::warp_barrier->arrive_and_wait();
  return other;
}

inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
  return std::bit_cast<float>(x);
}

// At most one thread of a block calls it for a number, and blocks run one after the other.
inline unsigned atomicMax(unsigned* number, unsigned value) {
  return std::exchange(*number, std::max(*number, value));
}

inline float rsqrtf(float x) {
  return 1.0F / std::sqrt(x);
}

namespace hyperion::models {

// kernel(arguments...) with `blocks` blocks of `threads` threads.
template <typename Kernel, typename... Arguments>
void run_blocks(unsigned blocks, unsigned threads, Kernel kernel, const Arguments&... arguments) {
  BlockBarrier barrier(threads);
  std::deque<BlockBarrier> warps;
  for (unsigned first = 0; first < threads; first += 32) warps.emplace_back(std::min(threads - first, 32U));
  const auto live = [&] {
    for (unsigned block = 0; block < blocks; ++block) {
      blockIdx = {block, 0, 0};
      kernel(arguments...);
      barrier.arrive_and_wait();  // shared memory is one block's at a time
    }
  };
#ifdef HYPERION_GPU_THREADS_ARE_THREADS
  std::vector<std::jthread> running;
  for (unsigned thread = 0; thread < threads; ++thread)
    running.emplace_back([&, thread] {
      threadIdx = {thread, 0, 0};
      blockDim = {threads, 1, 1};
      block_barrier = &barrier;
      warp_barrier = &warps.at(thread / 32);
      live();
    });
#else
  constexpr size_t kStack = 128 << 10;
  Turns all{
      .threads = std::vector<Turns::Context>(threads), .warps = std::move(warps), .host = {}, .run = live};
  for (Turns::Context& thread : all.threads) {
    getcontext(&thread.state);
    thread.stack = std::make_unique_for_overwrite<std::byte[]>(kStack);
    thread.state.uc_stack.ss_sp = thread.stack.get();
    thread.state.uc_stack.ss_size = kStack;
    makecontext(&thread.state, live_as_thread, 0);
  }
  blockDim = {threads, 1, 1};
  threadIdx = {0, 0, 0};
  block_barrier = &barrier;
  turns = &all;
  all.take(0);
  swapcontext(&all.host, &all.threads[0].state);
#endif
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
