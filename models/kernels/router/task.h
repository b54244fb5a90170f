// The arguments of the router CUDA kernels. Scores, weights and their gradients are fp32, choices are int32.
#pragma once

#include "models/kernels/common/launch.h"
#include "models/kernels/common/limits.h"

namespace hyperion::kernels {

struct RouteTokensTask {
  const void* logits = nullptr;  // [tokens, experts]
  const float* bias = nullptr;   // [experts]
  float* scores = nullptr;       // [tokens, experts]
  int32_t* choices = nullptr;    // [tokens, top_k]
  int64_t tokens = 0;
  int experts = 0, top_k = 0, groups = 0, limited_groups = 0;
  bool softmax = false;
};

// The kernel runs backward if `grad` is not null.
struct RoutingWeightsTask {
  const float* scores = nullptr;     // [tokens, experts]
  const int32_t* choices = nullptr;  // [tokens, top_k]
  float* weights = nullptr;          // forward: [tokens, top_k]
  int64_t tokens = 0;
  int experts = 0, top_k = 0;
  bool normalise = false;
  float scale = 1;
  // Backward:
  const float* grad = nullptr;  // [tokens, top_k]
  void* grad_logits = nullptr;  // [tokens, experts]
  // The auxiliary losses (RouterLossGradient): the gradient of the probabilities, one row for every
  // tokens_of_part tokens, or null; the logits and the coefficient of the z-loss, or null.
  const float* of_probabilities = nullptr;
  int64_t tokens_of_part = 1;
  const void* logits = nullptr;
  float z_loss = 0;
  bool softmax = false;
};

// `element` is the type of the logits.
cudaError_t launch(const RouteTokensTask& task, Element element, cudaStream_t stream);
cudaError_t launch(const RoutingWeightsTask& task, Element element, cudaStream_t stream);

}  // namespace hyperion::kernels
