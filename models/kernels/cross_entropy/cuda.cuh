// A block computes the cross-entropy of one row of logits. The first pass computes the largest logit and the
// sum of exponentials. The second pass overwrites the logits with the gradient; it starts at the row's end,
// which is still in the cache.
#pragma once

#include <cmath>

#include "models/kernels/common/plan.cuh"
#include "models/kernels/cross_entropy/task.h"

namespace hyperion::kernels {

// Two such blocks fill a multiprocessor of Hopper. With more rows at once (256 KB each with llama3) rows
// would not stay in the L2 cache until their second pass.
constexpr unsigned kCrossEntropyThreads = 1024;
constexpr int64_t kIgnored = -100;

// ExpSum holds the largest of some logits and their sum of exp(x - maximum).
struct ExpSum {
  float maximum = -INFINITY, sum = 0;

  // A NaN stays in the sum.
  template <typename T, int kChunk>
  __device__ inline void add(const Chunk<T, kChunk>& chunk) {
    float largest = maximum;
    for (int i = 0; i < kChunk; ++i) largest = fmaxf(largest, widened(chunk.values[i]));
    if (largest > maximum) {
      sum *= expf(maximum - largest);
      maximum = largest;
    }
    for (int i = 0; i < kChunk; ++i) {
      const float x = widened(chunk.values[i]);
      sum += x == -INFINITY ? 0.0f : expf(x - maximum);
    }
  }
  __device__ inline void add(const ExpSum& other) {
    const float largest = fmaxf(maximum, other.maximum);
    sum = sum * (maximum == largest ? 1.0f : expf(maximum - largest)) +
          other.sum * (other.maximum == largest ? 1.0f : expf(other.maximum - largest));
    maximum = largest;
  }
};

// Returns the sum over the row, on every thread. All of the row has been read when it returns.
template <typename T, int kChunk>
__device__ inline ExpSum exp_sum_of_row(const T* logits, int64_t columns) {
  constexpr int kAtOnce = 2;  // chunks in flight
  const int64_t stride = static_cast<int64_t>(blockDim.x) * kChunk;
  ExpSum own;
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * kChunk; at < columns; at += kAtOnce * stride) {
    const bool second = at + stride < columns;
    const auto a = load<kChunk>(logits + at);
    const auto b = load<kChunk>(logits + (second ? at + stride : at));
    own.add(a);
    if (second) own.add(b);
  }
  __shared__ float max_of_warps[kWarp], sum_of_warps[kWarp];
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    ExpSum other;
    other.maximum = __shfl_xor_sync(0xffffffffU, own.maximum, distance);
    other.sum = __shfl_xor_sync(0xffffffffU, own.sum, distance);
    own.add(other);
  }
  if (threadIdx.x % kWarp == 0) {
    max_of_warps[threadIdx.x / kWarp] = own.maximum;
    sum_of_warps[threadIdx.x / kWarp] = own.sum;
  }
  __syncthreads();
  ExpSum all;
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp)
    all.add(ExpSum{max_of_warps[warp], sum_of_warps[warp]});
  return all;
}

// Overwrites the logits with scale * (factor * softmax - onehot), or with 0 unless `counted`. The factor is
// 1 + 2 * z_loss * log_sum_exp.
template <typename T, int kChunk>
__device__ inline void write_gradient(T* logits, int64_t columns, float log_sum_exp, float z_loss,
                                      float scale, int64_t label_column, bool counted) {
  const float factor = z_loss == 0.0f ? 1.0f : 1.0f + 2.0f * z_loss * log_sum_exp;
  const int64_t stride = static_cast<int64_t>(blockDim.x) * kChunk;
  const int64_t own = static_cast<int64_t>(threadIdx.x) * kChunk;
  if (own >= columns) return;
  for (int64_t at = own + (columns - 1 - own) / stride * stride; at >= 0; at -= stride) {
    Chunk<T, kChunk> chunk = {};
    if (counted) {
      chunk = load<kChunk>(logits + at);
      for (int i = 0; i < kChunk; ++i) {
        const float p = expf(widened(chunk.values[i]) - log_sum_exp) * factor;
        chunk.values[i] = rounded<T>((at + i == label_column ? p - 1.0f : p) * scale);
      }
    }
    store<kChunk>(logits + at, chunk);
  }
}

// A label outside the vocabulary makes the loss and its row's gradient NaN.
template <typename T, int kChunk>
__global__ void __launch_bounds__(kCrossEntropyThreads) cross_entropy_row(const CrossEntropyTask task) {
  T* const logits = static_cast<T*>(task.logits) + static_cast<int64_t>(blockIdx.x) * task.columns;
  const int64_t label = task.labels[blockIdx.x];
  const bool counted = label != kIgnored, valid = label >= 0 && label < task.vocabulary;
  if (!counted) {
    if (threadIdx.x == 0) task.losses[blockIdx.x] = 0;
    if (threadIdx.x == 0 && task.z_loss != 0.0f) task.losses[task.rows + blockIdx.x] = 0;
    if (task.scale != nullptr) write_gradient<T, kChunk>(logits, task.columns, 0, 0, 0, -1, false);
    return;
  }
  const float picked = valid ? widened(logits[label]) : NAN;
  const ExpSum all = exp_sum_of_row<T, kChunk>(logits, task.columns);
  const float log_of_sum = logf(all.sum), log_sum_exp = all.maximum + log_of_sum;
  if (threadIdx.x == 0) task.losses[blockIdx.x] = all.maximum - picked + log_of_sum;
  if (threadIdx.x == 0 && task.z_loss != 0.0f)
    task.losses[task.rows + blockIdx.x] = log_sum_exp * log_sum_exp;
  if (task.scale == nullptr) return;
  write_gradient<T, kChunk>(logits, task.columns, valid ? log_sum_exp : NAN, task.z_loss, *task.scale, label,
                            true);
}

// Computes for each row the largest logit, the sum of exp(logit - largest), and the label's logit: 0 if the
// label is not among these columns, NaN if it is outside the vocabulary.
template <typename T, int kChunk>
__global__ void __launch_bounds__(kCrossEntropyThreads) vocab_statistics_row(const CrossEntropyTask task) {
  const T* const logits =
      static_cast<const T*>(task.logits) + static_cast<int64_t>(blockIdx.x) * task.columns;
  const ExpSum all = exp_sum_of_row<T, kChunk>(logits, task.columns);
  if (threadIdx.x != 0) return;
  const int64_t label = task.labels[blockIdx.x], column = label - task.first;
  float* const statistics = task.statistics + 3 * static_cast<int64_t>(blockIdx.x);
  statistics[0] = all.maximum;
  statistics[1] = all.sum;
  statistics[2] = label == kIgnored                       ? 0.0f
                  : label < 0 || label >= task.vocabulary ? NAN
                  : column >= 0 && column < task.columns  ? widened(logits[column])
                                                          : 0.0f;
}

template <typename T, int kChunk>
__global__ void __launch_bounds__(kCrossEntropyThreads) vocab_gradient_row(const CrossEntropyTask task) {
  const int64_t label = task.labels[blockIdx.x];
  write_gradient<T, kChunk>(static_cast<T*>(task.logits) + static_cast<int64_t>(blockIdx.x) * task.columns,
                            task.columns, task.log_sum_exp[blockIdx.x], task.z_loss, *task.scale,
                            label - task.first, label != kIgnored);
}

template <typename Run>
cudaError_t plan(const CrossEntropyTask& task, Element element, const Run& run) {
  const bool chunks = divides(chunk_of(element), {task.columns}) && aligned({task.logits});
  const int chunk = chunks ? chunk_of(element) : 1;
  const auto variants = variants_of<CrossEntropyTask>([&](auto x, auto chunk) {
    return task.losses != nullptr       ? cross_entropy_row<decltype(x), decltype(chunk)::value>
           : task.statistics != nullptr ? vocab_statistics_row<decltype(x), decltype(chunk)::value>
                                        : vocab_gradient_row<decltype(x), decltype(chunk)::value>;
  });
  return run(variants.of(element, chunk), task, task.rows,
             threads_for(task.columns / chunk, 4, kCrossEntropyThreads));
}

}  // namespace hyperion::kernels
