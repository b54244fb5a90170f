// Routing has a warp per token; lane l has experts l, l + 32, ...
#pragma once

#include <cmath>

#include "models/kernels/common/plan.cuh"
#include "models/kernels/router/task.h"

namespace hyperion::kernels {

__device__ inline float warp_sum(float value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(0xffffffffU, value, distance);
  return value;
}
__device__ inline float warp_max(float value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(0xffffffffU, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

// Returns whether number i comes before number j in a stable descending order with NaN first, as in libtorch.
__device__ inline bool before(float value_i, int i, float value_j, int j) {
  if (value_i > value_j || (value_i != value_i && value_j == value_j)) return true;
  if (value_j > value_i || (value_j != value_j && value_i == value_i)) return false;
  return i < j;
}

template <typename T>
__device__ inline void write_scores(const RouteTokensTask& task, const T* logits, float* scores) {
  const int lane = static_cast<int>(threadIdx.x);
  if (!task.softmax) {
    for (int e = lane; e < task.experts; e += kWarp) scores[e] = 1.0f / (1.0f + expf(-widened(logits[e])));
    return;
  }
  float largest = -INFINITY;
  for (int e = lane; e < task.experts; e += kWarp) {
    const float logit = widened(logits[e]);
    largest = logit > largest ? logit : largest;
  }
  largest = warp_max(largest);
  float sum = 0;
  for (int e = lane; e < task.experts; e += kWarp) sum += expf(widened(logits[e]) - largest);
  sum = warp_sum(sum);
  for (int e = lane; e < task.experts; e += kWarp) scores[e] = expf(widened(logits[e]) - largest) / sum;
}

// Writes -infinity for the experts of groups that are not among the best. All threads must call it.
__device__ inline void leave_best_groups(const RouteTokensTask& task, float* biased, float* of_groups) {
  const int lane = static_cast<int>(threadIdx.x), in_group = task.experts / task.groups;
  for (int group = lane; group < task.groups; group += kWarp) {
    const float* const of = biased + group * in_group;
    int first = 0, second = -1;
    for (int e = 1; e < in_group; ++e) {
      if (before(of[e], e, of[first], first)) {
        second = first;
        first = e;
      } else if (second < 0 || before(of[e], e, of[second], second)) {
        second = e;
      }
    }
    of_groups[group] = of[first] + of[second];
  }
  __syncthreads();
  for (int group = lane; group < task.groups; group += kWarp) {
    int better = 0;
    for (int other = 0; other < task.groups; ++other)
      if (before(of_groups[other], other, of_groups[group], group)) ++better;
    if (better < task.limited_groups) continue;
    for (int e = 0; e < in_group; ++e) biased[group * in_group + e] = -INFINITY;
  }
  __syncthreads();
}

template <typename T>
__global__ void __launch_bounds__(kWarp) route_token(const RouteTokensTask task) {
  __shared__ float biased[kMaxFusedExperts], of_groups[kMaxFusedExperts / 2];
  const int64_t token = blockIdx.x;
  float* const scores = task.scores + token * task.experts;
  write_scores(task, static_cast<const T*>(task.logits) + token * task.experts, scores);
  const int lane = static_cast<int>(threadIdx.x);
  for (int e = lane; e < task.experts; e += kWarp) biased[e] = scores[e] + task.bias[e];
  __syncthreads();
  if (task.groups > 0) leave_best_groups(task, biased, of_groups);
  unsigned taken = 0;  // bit i: of this lane's i-th expert
  for (int choice = 0; choice < task.top_k; ++choice) {
    int best = -1;
    float value = 0;
    for (int e = lane; e < task.experts; e += kWarp)
      if (((taken >> (e / kWarp)) & 1U) == 0 && (best < 0 || before(biased[e], e, value, best))) {
        best = e;
        value = biased[e];
      }
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      const int other = __shfl_xor_sync(0xffffffffU, best, distance);
      const float of_other = __shfl_xor_sync(0xffffffffU, value, distance);
      if (other >= 0 && (best < 0 || before(of_other, other, value, best))) {
        best = other;
        value = of_other;
      }
    }
    if (best % kWarp == lane) taken |= 1U << (best / kWarp);
    if (lane == 0) task.choices[token * task.top_k + choice] = best;
  }
}

constexpr unsigned kWeightsThreads = 128;

// A thread computes the weights of one token. The kernel is a template, so that a header can define it.
template <unsigned kThreads>
__global__ void __launch_bounds__(kThreads) routing_weights_tokens(const RoutingWeightsTask task) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (token >= task.tokens) return;
  const float* const scores = task.scores + token * task.experts;
  const int32_t* const choices = task.choices + token * task.top_k;
  float sum = 0;
  for (int k = 0; k < task.top_k; ++k) sum += scores[choices[k]];
  sum += static_cast<float>(kLeastSum);
  for (int k = 0; k < task.top_k; ++k) {
    const float weight = scores[choices[k]];
    task.weights[token * task.top_k + k] = (task.normalise ? weight / sum : weight) * task.scale;
  }
}

// The auxiliary losses' gradient of one token's logits: of(e), after prepare() by all lanes.
template <typename T>
struct LossesOfToken {
  const float* scores;
  const float* of_probabilities = nullptr;  // of this token, [experts]
  const T* logits = nullptr;
  bool softmax = false;
  float sum = 1, mean = 0;  // of the scores, and of of_probabilities weighted by the probabilities
  float log_sum_exp = 0, z_factor = 0;

  __device__ inline void prepare(const RoutingWeightsTask& task, int64_t token) {
    const int lane = static_cast<int>(threadIdx.x);
    softmax = task.softmax;
    if (task.of_probabilities != nullptr) {
      of_probabilities = task.of_probabilities + token / task.tokens_of_part * task.experts;
      float own_sum = 0, own_dot = 0;
      for (int e = lane; e < task.experts; e += kWarp) {
        own_sum += scores[e];
        own_dot += of_probabilities[e] * scores[e];
      }
      if (!softmax) sum = warp_sum(own_sum);
      mean = warp_sum(own_dot) / sum;
    }
    if (task.logits == nullptr) return;
    logits = static_cast<const T*>(task.logits) + token * task.experts;
    float largest = -INFINITY, exponentials = 0;
    for (int e = lane; e < task.experts; e += kWarp) largest = fmaxf(largest, widened(logits[e]));
    largest = warp_max(largest);
    for (int e = lane; e < task.experts; e += kWarp) exponentials += expf(widened(logits[e]) - largest);
    log_sum_exp = largest + logf(warp_sum(exponentials));
    z_factor = 2.0f * task.z_loss * log_sum_exp;
  }
  __device__ inline float of(int e) const {
    float grad = 0;
    if (of_probabilities != nullptr) {
      const float of_score = (of_probabilities[e] - mean) / sum;
      grad = softmax ? scores[e] * of_score : scores[e] * (1.0f - scores[e]) * of_score;
    }
    return logits == nullptr ? grad : grad + expf(widened(logits[e]) - log_sum_exp) * z_factor;
  }
};

template <typename T>
__global__ void __launch_bounds__(kWarp) routing_weights_backward_token(const RoutingWeightsTask task) {
  const int64_t token = blockIdx.x;
  const float* const scores = task.scores + token * task.experts;
  const int32_t* const choices = task.choices + token * task.top_k;
  const float* const grads = task.grad + token * task.top_k;
  float sum = 0, dot = 0;  // sums of the chosen scores, and of these times the scaled gradients
  for (int k = 0; k < task.top_k; ++k) {
    sum += scores[choices[k]];
    dot += grads[k] * task.scale * scores[choices[k]];
  }
  sum += static_cast<float>(kLeastSum);
  const auto of_choice = [&](int k) {
    const float grad = grads[k] * task.scale;
    return task.normalise ? (grad - dot / sum) / sum : grad;
  };
  const auto of_expert = [&](int e) {
    for (int k = 0; k < task.top_k; ++k)
      if (choices[k] == e) return of_choice(k);
    return 0.0f;
  };
  const int lane = static_cast<int>(threadIdx.x);
  float of_softmax = 0;
  if (task.softmax) {
    for (int k = lane; k < task.top_k; k += kWarp) of_softmax += of_choice(k) * scores[choices[k]];
    of_softmax = warp_sum(of_softmax);
  }
  LossesOfToken<T> losses{scores};
  const bool adds = task.of_probabilities != nullptr || task.logits != nullptr;
  if (adds) losses.prepare(task, token);
  T* const out = static_cast<T*>(task.grad_logits) + token * task.experts;
  for (int e = lane; e < task.experts; e += kWarp) {
    const float score = scores[e], grad = of_expert(e);
    const float of_logit = task.softmax ? score * (grad - of_softmax) : grad * score * (1.0f - score);
    out[e] = rounded<T>(adds ? of_logit + losses.of(e) : of_logit);
  }
}

template <typename Run>
cudaError_t plan(const RouteTokensTask& task, Element element, const Run& run) {
  return run(element == Element::kFloat ? route_token<float> : route_token<__nv_bfloat16>, task, task.tokens,
             unsigned{kWarp});
}

template <typename Run>
cudaError_t plan(const RoutingWeightsTask& task, Element element, const Run& run) {
  if (task.grad == nullptr)
    return run(routing_weights_tokens<kWeightsThreads>, task,
               (task.tokens + kWeightsThreads - 1) / kWeightsThreads, kWeightsThreads);
  return run(element == Element::kFloat ? routing_weights_backward_token<float>
                                        : routing_weights_backward_token<__nv_bfloat16>,
             task, task.tokens, unsigned{kWarp});
}

}  // namespace hyperion::kernels
