// Which experts a token goes to, and with what weights. Arithmetic in fp32 (fp64 of fp64) whatever the gate's
// product is in.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/kernels/router/router.h"

namespace hyperion::models {

using kernels::RoutingOptions;

// logits [tokens, experts] -> scores in (0, 1).
using kernels::plain::expert_scores;

// Scores and each token's experts at once, which is one launch on a GPU.
kernels::RoutedTokens route_tokens(const at::Tensor& logits, const at::Tensor& bias,
                                   const RoutingOptions& options);
// Round robin over the experts, whatever the scores are (debug.moe_force_load_balance).
at::Tensor balanced_choices(const at::Tensor& scores, const RoutingOptions& options);

// The weights of the chosen experts, [tokens, top_k] of the scores' dtype: their scores without the bias,
// normalised and scaled. Differentiable in `logits`, of which `scores` are.
at::Tensor routing_weights(const at::Tensor& logits, const at::Tensor& scores, const at::Tensor& choices,
                           const RoutingOptions& options);

}  // namespace hyperion::models
