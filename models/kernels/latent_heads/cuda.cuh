// The kernels have a block per token and a thread per chunk of a head. They round wherever the plain form
// stores a tensor. The gradient of the shared key elements is summed in fp32, inside groups of heads and then
// over the groups.
#pragma once

#include "models/kernels/common/plan.cuh"
#include "models/kernels/latent_heads/task.h"
#include "models/kernels/rope/cuda.cuh"

namespace hyperion::kernels {

constexpr unsigned kLatentThreads = 256;

// LatentToken finds the elements of one token.
template <typename T>
struct LatentToken {
  __device__ explicit LatentToken(const LatentLayouts& given)
      : task(given),
        sequence(blockIdx.x / given.length),
        position(blockIdx.x % given.length),
        angle(blockIdx.x % given.positions * (given.rotated / 2)) {}

  __device__ T* head(const HeadsLayout& layout, int which) const {
    return static_cast<T*>(layout.data) + offset_of(layout, 0, sequence, position, which);
  }
  // Rotates the pairs of x by the angles of the elements from `at` on, or back.
  template <int kChunk>
  __device__ void rotate(float* x, int at, bool back) const {
    for (int i = 0; i < kChunk; i += 2) {
      const float c = task.cos[angle + (at + i) / 2], s = task.sin[angle + (at + i) / 2];
      const float signed_sin = back ? -s : s, even = x[i], odd = x[i + 1];
      x[i] = even * c - odd * signed_sin;
      x[i + 1] = even * signed_sin + odd * c;
    }
  }

  const LatentLayouts& task;
  int64_t sequence, position, angle;
};

template <typename T, int kChunk>
__device__ inline void widen_chunk(const Chunk<T, kChunk>& chunk, float* x) {
  for (int i = 0; i < kChunk; ++i) x[i] = widened(chunk.values[i]);
}
template <typename T, int kChunk>
__device__ inline Chunk<T, kChunk> rounded_chunk(const float* x) {
  Chunk<T, kChunk> chunk;
  for (int i = 0; i < kChunk; ++i) chunk.values[i] = rounded<T>(x[i]);
  return chunk;
}

// Rotates elements [at, at + kChunk) of a query, or of its gradient, and multiplies them by the factor.
template <typename T, int kChunk>
__device__ inline void move_query(const LatentToken<T>& token, const T* from, T* to, int at, bool back) {
  float x[kChunk];
  widen_chunk(load<kChunk>(from + at), x);
  if (at >= token.task.plain) token.template rotate<kChunk>(x, at - token.task.plain, back);
  if (token.task.factor != 1)
    for (int i = 0; i < kChunk; ++i) x[i] *= token.task.factor;
  store<kChunk>(to + at, rounded_chunk<T, kChunk>(x));
}

template <typename T, int kChunk>
__global__ void __launch_bounds__(kLatentThreads) latent_heads_token(const LatentHeadsTask task) {
  const LatentToken<T> token(task);
  const int width = task.plain + task.rotated, per_head = width / kChunk;
  const int per_value = task.value_width / kChunk, units = task.heads * (2 * per_head + per_value);
  for (int unit = static_cast<int>(threadIdx.x); unit < units; unit += static_cast<int>(blockDim.x)) {
    const int of_values = unit - 2 * task.heads * per_head;  // behind queries and keys
    if (of_values >= 0) {
      const int head = of_values / per_value, at = of_values % per_value * kChunk;
      const float zeros[kChunk] = {};
      store<kChunk>(token.head(task.v, head) + at,
                    at < task.values ? load<kChunk>(token.head(task.kv, head) + task.plain + at)
                                     : rounded_chunk<T, kChunk>(zeros));
      continue;
    }
    const int head = unit / per_head % task.heads, at = unit % per_head * kChunk;
    if (unit < task.heads * per_head) {
      move_query<T, kChunk>(token, token.head(task.q, head), token.head(task.queries, head), at, false);
    } else {
      T* const to = token.head(task.keys, head) + at;
      if (at < task.plain) {
        store<kChunk>(to, load<kChunk>(token.head(task.kv, head) + at));
        continue;
      }
      float x[kChunk];
      widen_chunk(load<kChunk>(token.head(task.shared, 0) + at - task.plain), x);
      token.template rotate<kChunk>(x, at - task.plain, false);
      store<kChunk>(to, rounded_chunk<T, kChunk>(x));
    }
  }
}

// Computes the gradient of the shared elements. All threads must call it.
template <typename T, int kChunk>
__device__ inline void sum_over_heads(const LatentToken<T>& token) {
  __shared__ float sums[kLatentThreads][kChunk];
  const LatentLayouts& task = token.task;
  const unsigned columns = static_cast<unsigned>(task.rotated / kChunk);
  for (unsigned first = 0; first < columns; first += blockDim.x) {
    const unsigned here = columns - first < blockDim.x ? columns - first : blockDim.x;
    const unsigned groups = blockDim.x / here, column = threadIdx.x % here, group = threadIdx.x / here;
    const int at = static_cast<int>(first + column) * kChunk;
    float* const sum = sums[threadIdx.x];
    for (int i = 0; i < kChunk; ++i) sum[i] = 0;
    if (group < groups)
      for (int head = static_cast<int>(group); head < task.heads; head += static_cast<int>(groups)) {
        const auto grad = load<kChunk>(token.head(task.keys, head) + task.plain + at);
        for (int i = 0; i < kChunk; ++i) sum[i] += widened(grad.values[i]);
      }
    __syncthreads();
    if (group == 0) {
      for (unsigned other = 1; other < groups; ++other)
        for (int i = 0; i < kChunk; ++i) sum[i] += sums[other * here + column][i];
      token.template rotate<kChunk>(sum, at, /*back=*/true);
      store<kChunk>(token.head(task.shared, 0) + at, rounded_chunk<T, kChunk>(sum));
    }
    __syncthreads();
  }
}

template <typename T, int kChunk>
__global__ void __launch_bounds__(kLatentThreads)
    latent_heads_backward_token(const LatentHeadsBackwardTask task) {
  const LatentToken<T> token(task);
  const int of_q = (task.plain + task.rotated) / kChunk, of_kv = (task.plain + task.values) / kChunk;
  const int units = task.heads * (of_q + of_kv);
  for (int unit = static_cast<int>(threadIdx.x); unit < units; unit += static_cast<int>(blockDim.x)) {
    const int of_keys = unit - task.heads * of_q;
    if (of_keys < 0) {
      const int head = unit / of_q;
      move_query<T, kChunk>(token, token.head(task.queries, head), token.head(task.q, head),
                            unit % of_q * kChunk, true);
    } else {
      const int head = of_keys / of_kv, at = of_keys % of_kv * kChunk;
      store<kChunk>(token.head(task.kv, head) + at,
                    load<kChunk>(at < task.plain ? token.head(task.keys, head) + at
                                                 : token.head(task.v, head) + at - task.plain));
    }
  }
  sum_over_heads<T, kChunk>(token);
}

// Returns whether all heads can be read in chunks of `chunk` elements.
inline bool in_chunks(const LatentLayouts& task, int chunk) {
  bool chunks = divides(chunk, {task.plain, task.rotated, task.values, task.value_width});
  for (const HeadsLayout* heads : {&task.q, &task.kv, &task.shared, &task.queries, &task.keys, &task.v})
    chunks =
        chunks && aligned({heads->data}) && divides(chunk, {heads->sequence, heads->position, heads->head});
  return chunks;
}

template <typename Run>
cudaError_t plan(const LatentHeadsTask& task, Element element, const Run& run) {
  const Variants<LatentHeadsTask> variants = {latent_heads_token<float, 4>, latent_heads_token<float, 2>,
                                              latent_heads_token<__nv_bfloat16, 8>,
                                              latent_heads_token<__nv_bfloat16, 2>};
  const bool chunks = in_chunks(task, chunk_of(element));
  const int64_t units = int64_t{task.heads} * (2 * (task.plain + task.rotated) + task.value_width) /
                        (chunks ? chunk_of(element) : 2);
  return run(variants.of(element, chunks ? 2 : 1), task, task.sequences * task.length,
             threads_for(units, 2, kLatentThreads));
}

template <typename Run>
cudaError_t plan(const LatentHeadsBackwardTask& task, Element element, const Run& run) {
  const Variants<LatentHeadsBackwardTask> variants = {
      latent_heads_backward_token<float, 4>, latent_heads_backward_token<float, 2>,
      latent_heads_backward_token<__nv_bfloat16, 8>, latent_heads_backward_token<__nv_bfloat16, 2>};
  const bool chunks = in_chunks(task, chunk_of(element));
  const int64_t units =
      int64_t{task.heads} * (2 * task.plain + task.rotated + task.values) / (chunks ? chunk_of(element) : 2);
  return run(variants.of(element, chunks ? 2 : 1), task, task.sequences * task.length,
             threads_for(units, 2, kLatentThreads));
}

}  // namespace hyperion::kernels
