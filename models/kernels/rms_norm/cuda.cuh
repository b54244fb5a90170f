// The kernels compute the residual sum with its RMSNorm, and the backward of both. Forward has a block per
// row, which keeps the row in registers as far as it fits. In backward block b takes rows b, b + blocks, ...
// and sums its part of the weight's gradient in registers; a second launch adds the parts.
#pragma once

#include "models/kernels/common/plan.cuh"
#include "models/kernels/rms_norm/task.h"

namespace hyperion::kernels {

constexpr unsigned kNormThreads = 1024;
constexpr unsigned kNormBackwardThreads = 512;  // more would leave a thread too few registers

template <typename T, int kChunk>
__device__ inline Chunk<T, kChunk> added(const Chunk<T, kChunk>& a, const Chunk<T, kChunk>& b) {
  Chunk<T, kChunk> sum;
  for (int i = 0; i < kChunk; ++i) sum.values[i] = rounded<T>(widened(a.values[i]) + widened(b.values[i]));
  return sum;
}

template <typename T, int kChunk>
__device__ inline float squares_of(const Chunk<T, kChunk>& x) {
  float sum = 0;
  for (int i = 0; i < kChunk; ++i) sum += widened(x.values[i]) * widened(x.values[i]);
  return sum;
}

template <typename T, int kChunk>
__device__ inline Chunk<T, kChunk> normalised(const Chunk<T, kChunk>& x, float rstd,
                                              const Chunk<T, kChunk>& weight) {
  Chunk<T, kChunk> y;
  for (int i = 0; i < kChunk; ++i)
    y.values[i] = rounded<T>(widened(x.values[i]) * rstd * widened(weight.values[i]));
  return y;
}

template <typename T, int kChunk>
__global__ void __launch_bounds__(kNormThreads) add_rms_norm_row(const AddRmsNormTask task) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * task.n;
  const T* const x = static_cast<const T*>(task.x) + row;
  const T* const residual = static_cast<const T*>(task.residual) + row;
  const T* const weight = static_cast<const T*>(task.weight);
  T* const sum = static_cast<T*>(task.sum) + row;
  T* const output = static_cast<T*>(task.output) + row;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * kChunk;
  const int64_t own = static_cast<int64_t>(threadIdx.x) * kChunk;

  const auto summed = [&](int64_t at) {
    const auto both = added(load<kChunk>(residual + at), load<kChunk>(x + at));
    store<kChunk>(sum + at, both);
    return both;
  };
  Chunk<T, kChunk> held[kHeld];
  float squares = 0;
  for (int k = 0; k < kHeld; ++k) {
    const int64_t at = own + k * stride;
    if (at >= task.n) continue;
    held[k] = summed(at);
    squares += squares_of(held[k]);
  }
  for (int64_t at = own + kHeld * stride; at < task.n; at += stride) squares += squares_of(summed(at));
  const float mean = block_sum(squares) / static_cast<float>(task.n);
  const float rstd = rsqrtf(mean + task.eps);
  if (threadIdx.x == 0) task.rstd[blockIdx.x] = rstd;

  for (int k = 0; k < kHeld; ++k) {
    const int64_t at = own + k * stride;
    if (at >= task.n) continue;
    store<kChunk>(output + at, normalised(held[k], rstd, load<kChunk>(weight + at)));
  }
  for (int64_t at = own + kHeld * stride; at < task.n; at += stride)
    store<kChunk>(output + at, normalised(load<kChunk>(sum + at), rstd, load<kChunk>(weight + at)));
}

// NormGradient computes a chunk's terms of the row's mean of weighted gradient times normed input, and of the
// gradients of the sum and of the weight.
template <typename T, int kChunk>
struct NormGradient {
  Chunk<T, kChunk> grad, x;

  __device__ inline float product(float rstd, const Chunk<T, kChunk>& weight) const {
    float sum = 0;
    for (int i = 0; i < kChunk; ++i)
      sum += widened(grad.values[i]) * widened(weight.values[i]) * (widened(x.values[i]) * rstd);
    return sum;
  }
  __device__ inline void add_to(float* grad_weight, float rstd) const {
    for (int i = 0; i < kChunk; ++i)
      grad_weight[i] += widened(grad.values[i]) * (widened(x.values[i]) * rstd);
  }
  __device__ inline Chunk<T, kChunk> sum_gradient(float rstd, float mean, const Chunk<T, kChunk>& weight,
                                                  const Chunk<T, kChunk>& others) const {
    Chunk<T, kChunk> result;
    for (int i = 0; i < kChunk; ++i) {
      const float normed = widened(x.values[i]) * rstd;
      const float weighted = widened(grad.values[i]) * widened(weight.values[i]);
      result.values[i] = rounded<T>((weighted - normed * mean) * rstd + widened(others.values[i]));
    }
    return result;
  }
};

// Returns the sum of the gradient's terms, for the chunk at `at`.
template <typename T, int kChunk>
__device__ inline Chunk<T, kChunk> summed_terms(const AddRmsNormBackwardTask& task, int64_t at) {
  const auto term = [&](const void* of) { return load<kChunk>(static_cast<const T*>(of) + at); };
  Chunk<T, kChunk> sum = {};
  bool any = false;
  for (int k = kMoreTerms - 1; k >= 0; --k) {
    if (task.more[k] == nullptr) continue;
    sum = any ? added(sum, term(task.more[k])) : term(task.more[k]);
    any = true;
  }
  return any ? added(sum, term(task.grad)) : term(task.grad);
}

template <typename T, int kChunk>
__global__ void __launch_bounds__(kNormBackwardThreads)
    add_rms_norm_backward_rows(const AddRmsNormBackwardTask task) {
  const T* const weight = static_cast<const T*>(task.weight);
  float* const partial = task.partial + static_cast<int64_t>(blockIdx.x) * task.n;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * kChunk;
  const int64_t own = static_cast<int64_t>(threadIdx.x) * kChunk;
  float grad_weight[kHeld][kChunk] = {};
  for (int64_t r = blockIdx.x; r < task.rows; r += task.blocks) {
    const int64_t row = r * task.n;
    const T* const others = static_cast<const T*>(task.grad_sum) + row;
    const T* const sum = static_cast<const T*>(task.sum) + row;
    T* const result = static_cast<T*>(task.grad_x) + row;
    const float rstd = task.rstd[r];

    NormGradient<T, kChunk> held[kHeld];
    Chunk<T, kChunk> held_others[kHeld];  // read here, so that the load overlaps the sum
    float product = 0;
    for (int k = 0; k < kHeld; ++k) {
      const int64_t at = own + k * stride;
      if (at >= task.n) continue;
      held[k] = {summed_terms<T, kChunk>(task, row + at), load<kChunk>(sum + at)};
      held_others[k] = load<kChunk>(others + at);
      product += held[k].product(rstd, load<kChunk>(weight + at));
      held[k].add_to(grad_weight[k], rstd);
    }
    for (int64_t at = own + kHeld * stride; at < task.n; at += stride) {
      const NormGradient<T, kChunk> chunk = {summed_terms<T, kChunk>(task, row + at), load<kChunk>(sum + at)};
      product += chunk.product(rstd, load<kChunk>(weight + at));
      Chunk<float, kChunk> kept = {};
      if (r != blockIdx.x) kept = load<kChunk>(partial + at);
      chunk.add_to(kept.values, rstd);
      store<kChunk>(partial + at, kept);
    }
    const float mean = block_sum(product) / static_cast<float>(task.n);
    for (int k = 0; k < kHeld; ++k) {
      const int64_t at = own + k * stride;
      if (at >= task.n) continue;
      store<kChunk>(result + at, held[k].sum_gradient(rstd, mean, load<kChunk>(weight + at), held_others[k]));
    }
    for (int64_t at = own + kHeld * stride; at < task.n; at += stride) {
      const NormGradient<T, kChunk> chunk = {summed_terms<T, kChunk>(task, row + at), load<kChunk>(sum + at)};
      store<kChunk>(result + at,
                    chunk.sum_gradient(rstd, mean, load<kChunk>(weight + at), load<kChunk>(others + at)));
    }
  }
  for (int k = 0; k < kHeld; ++k) {
    const int64_t at = own + k * stride;
    if (at >= task.n) continue;
    Chunk<float, kChunk> parts;
    for (int i = 0; i < kChunk; ++i) parts.values[i] = grad_weight[k][i];
    store<kChunk>(partial + at, parts);
  }
}

// A block sums kWarp columns of the parts: each warp sums every kSumWarps-th row, then one warp sums the
// warps' results.
constexpr int kSumWarps = 8;

template <typename T>
__global__ void __launch_bounds__(kWarp* kSumWarps) sum_weight_gradient(const AddRmsNormBackwardTask task) {
  __shared__ float of_warps[kSumWarps][kWarp];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  float sum = 0;
  if (column < task.n)
    for (int64_t part = warp; part < task.blocks; part += kSumWarps)
      sum += task.partial[part * task.n + column];
  of_warps[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= task.n) return;
  for (int other = 1; other < kSumWarps; ++other) sum += of_warps[other][lane];
  static_cast<T*>(task.grad_weight)[column] = rounded<T>(sum);
}

template <typename Run>
cudaError_t plan(const AddRmsNormTask& task, Element element, const Run& run) {
  const bool chunks = divides(chunk_of(element), {task.n}) &&
                      aligned({task.x, task.residual, task.weight, task.sum, task.output});
  const int chunk = chunks ? chunk_of(element) : 1;
  const auto variants = variants_of<AddRmsNormTask>(
      [](auto x, auto chunk) { return add_rms_norm_row<decltype(x), decltype(chunk)::value>; });
  return run(variants.of(element, chunk), task, task.rows, threads_for(task.n / chunk, kHeld, kNormThreads));
}

template <typename Run>
cudaError_t plan(const AddRmsNormBackwardTask& task, Element element, const Run& run) {
  const bool chunks = divides(chunk_of(element), {task.n}) &&
                      aligned({task.grad, task.grad_sum, task.sum, task.weight, task.grad_x, task.partial}) &&
                      aligned({task.more[0], task.more[1]});
  const int chunk = chunks ? chunk_of(element) : 1;
  const auto variants = variants_of<AddRmsNormBackwardTask>(
      [](auto x, auto chunk) { return add_rms_norm_backward_rows<decltype(x), decltype(chunk)::value>; });
  const cudaError_t rows = run(variants.of(element, chunk), task, task.blocks,
                               threads_for(task.n / chunk, kHeld, kNormBackwardThreads));
  if (rows != cudaSuccess) return rows;
  return run(element == Element::kFloat ? sum_weight_gradient<float> : sum_weight_gradient<__nv_bfloat16>,
             task, (task.n + kWarp - 1) / kWarp, unsigned{kWarp * kSumWarps});
}

}  // namespace hyperion::kernels
