// The kernels compute the clamped gate and its gradient in one pass; a thread has the pairs of one access of
// 16 bytes.
#pragma once

#include <cmath>

#include "models/kernels/clamped_gate/task.h"
#include "models/kernels/common/limits.h"
#include "models/kernels/common/plan.cuh"

namespace hyperion::kernels {

constexpr unsigned kClampedGateThreads = 256;
constexpr auto kClampLimit = static_cast<float>(kGateLimit), kClampSlope = static_cast<float>(kGateSlope);

struct ClampedPair {
  __device__ ClampedPair(float given_gate, float given_up)
      : cuts_gate(given_gate > kClampLimit),
        cuts_up(given_up > kClampLimit || given_up < -kClampLimit),
        gate(cuts_gate ? kClampLimit : given_gate),
        up(given_up > kClampLimit    ? kClampLimit
           : given_up < -kClampLimit ? -kClampLimit
                                     : given_up),
        sigmoid(1.0f / (1.0f + expf(-(gate * kClampSlope)))) {}
  bool cuts_gate, cuts_up;
  float gate, up, sigmoid;
};

// kPairs: of a thread.
template <typename T, int kPairs>
__global__ void __launch_bounds__(kClampedGateThreads) clamped_gate_pairs(const ClampedGateTask task) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPairs;
  if (first >= task.count) return;
  const auto h = load<2 * kPairs>(static_cast<const T*>(task.h) + 2 * first);
  Chunk<T, kPairs> result;
  for (int i = 0; i < kPairs; ++i) {
    const ClampedPair x(widened(h.values[2 * i]), widened(h.values[2 * i + 1]));
    result.values[i] = rounded<T>(x.gate * x.sigmoid * (x.up + 1.0f));
  }
  store<kPairs>(static_cast<T*>(task.output) + first, result);
}

template <typename T, int kPairs>
__global__ void __launch_bounds__(kClampedGateThreads)
    clamped_gate_backward_pairs(const ClampedGateTask task) {
  const int64_t first = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * kPairs;
  if (first >= task.count) return;
  const auto h = load<2 * kPairs>(static_cast<const T*>(task.h) + 2 * first);
  const auto grad = load<kPairs>(static_cast<const T*>(task.grad) + first);
  Chunk<T, 2 * kPairs> result;
  for (int i = 0; i < kPairs; ++i) {
    const ClampedPair x(widened(h.values[2 * i]), widened(h.values[2 * i + 1]));
    const float d = widened(grad.values[i]);
    const float slope = x.sigmoid + x.gate * kClampSlope * x.sigmoid * (1.0f - x.sigmoid);
    result.values[2 * i] = rounded<T>(x.cuts_gate ? 0.0f : d * (x.up + 1.0f) * slope);
    result.values[2 * i + 1] = rounded<T>(x.cuts_up ? 0.0f : d * (x.gate * x.sigmoid));
  }
  store<2 * kPairs>(static_cast<T*>(task.grad_h) + 2 * first, result);
}

template <typename Run>
cudaError_t plan(const ClampedGateTask& task, Element element, const Run& run) {
  const bool chunks =
      divides(chunk_of(element) / 2, {task.count}) && aligned({task.h, task.grad, task.output, task.grad_h});
  const int chunk = chunks ? chunk_of(element) : 1, pairs = chunks ? chunk / 2 : 1;
  const int64_t threads = (task.count + pairs - 1) / pairs;
  const auto variants = variants_of<ClampedGateTask>([&](auto x, auto elements) {
    constexpr int kPairs = decltype(elements)::value > 1 ? decltype(elements)::value / 2 : 1;
    return task.grad == nullptr ? clamped_gate_pairs<decltype(x), kPairs>
                                : clamped_gate_backward_pairs<decltype(x), kPairs>;
  });
  return run(variants.of(element, chunk), task, (threads + kClampedGateThreads - 1) / kClampedGateThreads,
             kClampedGateThreads);
}

}  // namespace hyperion::kernels
