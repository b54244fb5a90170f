// Calls router/cuda.cuh with tensors.
#pragma once

#include <algorithm>

#include <ATen/ops/empty.h>

#include "models/kernels/common/tensors.h"
#include "models/kernels/router/router.h"
#include "models/kernels/router/task.h"

namespace hyperion::kernels::cuda {

template <typename Launch>
RoutedTokens route_tokens(const Launch& launch, const Tensor& given_logits, const Tensor& given_bias,
                          const RoutingOptions& options) {
  const Tensor logits = given_logits.contiguous(), bias = given_bias.to(at::kFloat).contiguous();
  const int64_t tokens = logits.size(0);
  require_numbers(logits, tokens * options.experts, "route_tokens: logits");
  require_numbers(bias, options.experts, "route_tokens: bias");
  TORCH_CHECK(options.experts <= kMaxFusedExperts && options.top_k <= options.experts,
              "route_tokens: ", options.top_k, " of ", options.experts, " experts, expected at most all of ",
              kMaxFusedExperts);
  RoutedTokens out = {at::empty(logits.sizes(), logits.options().dtype(at::kFloat)),
                      at::empty({tokens, options.top_k}, logits.options().dtype(at::kInt))};
  require_alike(bias, out.scores, "route_tokens: bias");
  const RouteTokensTask task{.logits = logits.const_data_ptr(),
                             .bias = bias.const_data_ptr<float>(),
                             .scores = out.scores.mutable_data_ptr<float>(),
                             .choices = out.choices.mutable_data_ptr<int32_t>(),
                             .tokens = tokens,
                             .experts = static_cast<int>(options.experts),
                             .top_k = static_cast<int>(options.top_k),
                             .groups = static_cast<int>(options.groups),
                             .limited_groups = static_cast<int>(options.limited_groups),
                             .softmax = options.score == models::ScoreFunction::kSoftmax};
  launch(task, element_of(logits, "route_tokens"));
  return out;
}

inline RoutingWeightsTask routing_task(const Tensor& scores, const Tensor& choices,
                                       const RoutingOptions& options) {
  require_numbers(scores, choices.size(0) * options.experts, "routing_weights: scores");
  return {.scores = scores.const_data_ptr<float>(),
          .choices = choices.const_data_ptr<int32_t>(),
          .tokens = choices.size(0),
          .experts = static_cast<int>(options.experts),
          .top_k = static_cast<int>(options.top_k),
          .normalise = options.normalise,
          .scale = static_cast<float>(options.scale),
          .softmax = options.score == models::ScoreFunction::kSoftmax};
}

template <typename Launch>
Tensor routing_weights(const Launch& launch, const Tensor& given_scores, const Tensor& given_choices,
                       const RoutingOptions& options) {
  const Tensor scores = given_scores.contiguous(), choices = given_choices.contiguous();
  Tensor weights = at::empty(choices.sizes(), scores.options());
  RoutingWeightsTask task = routing_task(scores, choices, options);
  task.weights = weights.mutable_data_ptr<float>();
  launch(task, Element::kFloat);
  return weights;
}

template <typename Launch>
Tensor routing_weights_backward(const Launch& launch, const Tensor& given_grad, const Tensor& given_scores,
                                const Tensor& given_choices, const RoutingOptions& options,
                                const RouterLossGradient& losses, at::ScalarType dtype) {
  const Tensor grad = given_grad.contiguous(), scores = given_scores.contiguous(),
               choices = given_choices.contiguous();
  require_numbers(grad, choices.numel(), "routing_weights_backward: grad");
  Tensor grad_logits = at::empty(scores.sizes(), scores.options().dtype(dtype));
  RoutingWeightsTask task = routing_task(scores, choices, options);
  task.grad = grad.const_data_ptr<float>();
  task.grad_logits = grad_logits.mutable_data_ptr();
  const Tensor of_probabilities =
      losses.of_probabilities.defined() ? losses.of_probabilities.contiguous() : Tensor();
  const Tensor logits = losses.z_loss != 0 ? losses.logits.contiguous() : Tensor();
  if (of_probabilities.defined() && of_probabilities.size(0) > 0) {
    const int64_t parts = of_probabilities.size(0);
    require_numbers(of_probabilities, parts * options.experts, "routing_weights_backward: of_probabilities");
    require_alike(of_probabilities, scores, "routing_weights_backward: of_probabilities");
    TORCH_CHECK(task.tokens % parts == 0, "routing_weights_backward: ", task.tokens, " tokens in ", parts,
                " parts");
    task.of_probabilities = of_probabilities.const_data_ptr<float>();
    task.tokens_of_part = std::max<int64_t>(task.tokens / parts, 1);
  }
  if (logits.defined()) {
    require_numbers(logits, task.tokens * options.experts, "routing_weights_backward: logits");
    require_alike(logits, grad_logits, "routing_weights_backward: logits");
    task.logits = logits.const_data_ptr();
    task.z_loss = static_cast<float>(losses.z_loss);
  }
  launch(task, element_of(grad_logits, "routing_weights_backward"));
  return grad_logits;
}

}  // namespace hyperion::kernels::cuda
