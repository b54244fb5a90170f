// The router chooses experts and their weights for each token. Its arithmetic is in fp32 (fp64 for fp64)
// whatever the dtype of the gate's product is.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "models/kernels/router/router.h"

namespace hyperion::models {

using kernels::RoutingOptions;

// Returns the scores, in (0, 1), of logits [tokens, experts].
using kernels::plain::expert_scores;

// Returns the scores and each token's experts, in one launch on a GPU.
kernels::RoutedTokens route_tokens(const at::Tensor& logits, const at::Tensor& bias,
                                   const RoutingOptions& options);
// Chooses experts round robin, ignoring the scores (debug.moe_force_load_balance).
at::Tensor balanced_choices(const at::Tensor& scores, const RoutingOptions& options);

// Returns the weights of the chosen experts, [tokens, top_k] of the scores' dtype: their scores without the
// bias, normalised and scaled. Differentiable in `logits`, from which `scores` were computed. `losses`,
// unless null, adds the gradient of the auxiliary losses to that of the logits.
at::Tensor routing_weights(const at::Tensor& logits, const at::Tensor& scores, const at::Tensor& choices,
                           const RoutingOptions& options,
                           const std::shared_ptr<const kernels::RouterLossGradient>& losses = {});

}  // namespace hyperion::models
