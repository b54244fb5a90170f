// A block of threads updates kElementsOfBlock elements of one tensor, and each thread four at a time, which
// in most tensors share one block of random words.
#pragma once

#include <cmath>
#include <type_traits>

#include "models/kernels/adam/task.h"
#include "models/kernels/common/plan.cuh"

namespace hyperion::kernels {

constexpr unsigned kUpdateThreads = 256;
constexpr int kUpdateEach = 4;

// The random words of elements; a block of four is computed once for neighbours.
struct ElementWords {
  uint64_t key, counter_high;
  int64_t block = -1;
  uint32_t words[4] = {};

  __device__ uint32_t of(int64_t element) {
    if (element / 4 != block) compute(element / 4);
    const int which = static_cast<int>(element % 4);
    return which == 0 ? words[0] : which == 1 ? words[1] : which == 2 ? words[2] : words[3];
  }
  // Philox4x32-10 (base/philox.h).
  __device__ void compute(int64_t of_block) {
    block = of_block;
    uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32);
    uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53} * c0, p1 = uint64_t{0xCD9E8D57} * c2;
      c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<uint32_t>(p1);
      c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<uint32_t>(p0);
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
  }
};

__device__ inline int64_t element_at(const ElementIndices& at, int64_t i) {
  if (at.runs == 1 && i < at.run) return at.first + i;
  const int64_t run = i / at.run;
  return at.first + i % at.run + run % at.runs * at.run_stride + run / at.runs * at.plane_stride;
}

__device__ inline float wide_bits(uint16_t bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}
// The upper half of x after a random number was added to the lower half; NaN stays NaN.
__device__ inline uint16_t rounded_up_by(float x, uint32_t random) {
  const unsigned bits = __float_as_uint(x);
  return (bits & 0x7FFFFFFFU) > 0x7F800000U ? uint16_t{0x7FC0} : static_cast<uint16_t>((bits + random) >> 16);
}

// Numbers that depend on the number of updates, which is on the device.
struct UpdateNumbers {
  float step_size, root2;
};

template <int kCount>
__device__ inline void adam_elements(const RoundedUpdateTask& task, const RoundedTensor& t,
                                     const UpdateNumbers& numbers, int64_t at, ElementWords& words) {
  const auto grad = load<kCount>(t.grad + at);
  auto weight = load<kCount>(t.weight + at);
  auto first = load<kCount>(t.first + at), second = load<kCount>(t.second + at);
  Chunk<uint16_t, kCount> copy;
  const float divisor = task.divisor == nullptr ? 1.0f : *task.divisor;
  const float beta1 = static_cast<float>(task.beta1), rest1 = static_cast<float>(1 - task.beta1);
  const float beta2 = static_cast<float>(task.beta2), rest2 = static_cast<float>(1 - task.beta2);
  for (int i = 0; i < kCount; ++i) {
    const float w = weight.values[i];
    float g = grad.values[i] / divisor;
    if (task.added_decay != 0) g += w * task.added_decay;
    const float m0 = wide_bits(first.values[i]), difference = g - m0;
    const float m = rest1 < 0.5f ? m0 + difference * rest1 : g - difference * beta1;
    const float v = wide_bits(second.values[i]) * beta2 + g * rest2 * g;
    const float updated = w * task.shrink - m * numbers.step_size / (sqrtf(v) / numbers.root2 + task.eps);
    const uint32_t random = words.of(element_at(t.indices, at + i));
    weight.values[i] = updated;
    first.values[i] = rounded_up_by(m, random & 0xFFFFU);
    second.values[i] = rounded_up_by(v, random >> 16);
    const unsigned odd = __float_as_uint(updated) >> 16 & 1U;
    copy.values[i] = rounded_up_by(updated, 0x7FFFU + odd);  // to nearest, ties to even
  }
  store<kCount>(t.weight + at, weight);
  store<kCount>(t.first + at, first);
  store<kCount>(t.second + at, second);
  if (t.copy != nullptr) store<kCount>(t.copy + at, copy);
}

template <int kCount>
__device__ inline void momentum_elements(const RoundedUpdateTask& task, const RoundedTensor& t, int64_t at,
                                         ElementWords& words) {
  auto grad = load<kCount>(t.grad + at);
  auto first = load<kCount>(t.first + at);
  const bool skipped = *task.skip != 0;
  const float momentum = static_cast<float>(task.beta1), rest = static_cast<float>(1 - task.beta1);
  for (int i = 0; i < kCount; ++i) {
    const float g = skipped ? 0.0f : grad.values[i], m0 = wide_bits(first.values[i]), difference = g - m0;
    float m = rest < 0.5f ? m0 + difference * rest : g - difference * momentum;
    if (skipped) m = m0;
    first.values[i] = rounded_up_by(m, words.of(element_at(t.indices, at + i)) & 0xFFFFU);
    const float back = m - g;
    const float nesterov = momentum < 0.5f ? g + back * momentum : m - back * rest;
    grad.values[i] = task.nesterov ? nesterov : m;
  }
  store<kCount>(t.grad + at, grad);
  store<kCount>(t.first + at, first);
}

// Calls update(chunk, first element) for the elements that this thread updates.
template <typename F>
__device__ inline void for_elements_of_thread(const RoundedTensor& t, int64_t block, const F& update) {
  const int64_t begin = block * kElementsOfBlock;
  const int64_t end = begin + kElementsOfBlock < t.numel ? begin + kElementsOfBlock : t.numel;
  const bool whole = ((reinterpret_cast<uintptr_t>(t.weight) | reinterpret_cast<uintptr_t>(t.grad)) % 16 |
                      (reinterpret_cast<uintptr_t>(t.first) | reinterpret_cast<uintptr_t>(t.second) |
                       reinterpret_cast<uintptr_t>(t.copy)) %
                          8) == 0;
  for (int64_t at = begin + static_cast<int64_t>(threadIdx.x) * kUpdateEach; at < end;
       at += static_cast<int64_t>(blockDim.x) * kUpdateEach) {
    if (whole && at + kUpdateEach <= end) {
      update(std::integral_constant<int, kUpdateEach>(), at);
    } else {
      const int64_t stop = at + kUpdateEach < end ? at + kUpdateEach : end;
      for (int64_t one = at; one < stop; ++one) update(std::integral_constant<int, 1>(), one);
    }
  }
}

__device__ inline int tensor_of_block(const RoundedUpdateTask& task, int block) {
  int tensor = 0;
  while (tensor + 1 < task.count && block >= task.first_block[tensor + 1]) ++tensor;
  return tensor;
}

__global__ void __launch_bounds__(kUpdateThreads) rounded_adam_block(const RoundedUpdateTask task) {
  __shared__ UpdateNumbers shared;
  if (*task.skip != 0) return;
  if (threadIdx.x == 0) {
    const double updates = *task.updates;
    shared.step_size = static_cast<float>(task.lr / (1 - pow(task.beta1, updates)));
    shared.root2 = static_cast<float>(sqrt(1 - pow(task.beta2, updates)));
  }
  __syncthreads();
  const UpdateNumbers numbers = shared;
  const int block = static_cast<int>(blockIdx.x), index = tensor_of_block(task, block);
  const RoundedTensor& t = task.tensors[index];
  ElementWords words{t.key, static_cast<uint64_t>(*task.updates)};
  for_elements_of_thread(t, block - task.first_block[index], [&](auto chunk, int64_t at) {
    adam_elements<decltype(chunk)::value>(task, t, numbers, at, words);
  });
}

__global__ void __launch_bounds__(kUpdateThreads) rounded_momentum_block(const RoundedUpdateTask task) {
  const int block = static_cast<int>(blockIdx.x), index = tensor_of_block(task, block);
  const RoundedTensor& t = task.tensors[index];
  ElementWords words{t.key, static_cast<uint64_t>(*task.updates)};
  for_elements_of_thread(t, block - task.first_block[index], [&](auto chunk, int64_t at) {
    momentum_elements<decltype(chunk)::value>(task, t, at, words);
  });
}

template <typename Run>
cudaError_t plan(const RoundedUpdateTask& task, Element, const Run& run) {
  return run(task.beta2 < 0 ? rounded_momentum_block : rounded_adam_block, task, task.first_block[task.count],
             kUpdateThreads);
}

}  // namespace hyperion::kernels
