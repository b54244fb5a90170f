// Chooses experts and their weights for each token (models/parts/experts/router.h).
#pragma once

#include "models/kernels/common/limits.h"
#include "models/kernels/kernel.h"
#include "models/parts/experts/args.h"

namespace hyperion::kernels {

struct RoutingOptions {
  RoutingOptions() = default;
  explicit RoutingOptions(const models::ExpertArgs& args);

  int64_t experts = 0, top_k = 0;
  models::ScoreFunction score = {};
  bool normalise = false;  // whether the weights of a token are divided by their sum + kLeastSum
  double scale = 1;        // multiplies the weights after that
  int64_t groups = 0;      // the number of groups of neighbouring experts; 0: no groups
  // A token chooses experts from this number of groups, those with the largest sum of their two best scores.
  int64_t limited_groups = 0;
};

inline void append(Values& values, const RoutingOptions& options) {
  for (const int64_t number : {options.experts, options.top_k, static_cast<int64_t>(options.score),
                               static_cast<int64_t>(options.normalise)})
    append(values, number);
  append(values, options.scale);
  append(values, options.groups);
  append(values, options.limited_groups);
}

// Routes tokens: logits [tokens, experts], bias [experts] -> scores [tokens, experts] in (0, 1), of
// opmath_dtype(), and choices int32 [tokens, top_k]. Choices are the experts with the largest score plus
// bias, best first; of equal ones the lower index. NaN is larger than all numbers, in sums of groups too, as
// in libtorch.
struct RoutedTokens {
  at::Tensor scores, choices;
};
using RouteTokens = RoutedTokens(const at::Tensor& logits, const at::Tensor& bias,
                                 const RoutingOptions& options);
// Returns the weights of the chosen experts, [tokens, top_k] of the scores' dtype: their scores without the
// bias, normalised and scaled.
using RoutingWeights = at::Tensor(const at::Tensor& scores, const at::Tensor& choices,
                                  const RoutingOptions& options);
// RouterLossGradient is the gradient of the router's auxiliary losses (models/parts/experts/router_losses.h).
struct RouterLossGradient {
  // The gradient of the tokens' probabilities, which are their scores divided by their sum: [parts, experts]
  // in the dtype of the scores, one row for each part of the tokens, of equally many; undefined: none.
  at::Tensor of_probabilities{};
  at::Tensor logits{};  // [tokens, experts], read by the z-loss
  double z_loss = 0;    // the coefficient of (log-sum-exp)^2 of a token's logits; 0: none

  bool any() const { return of_probabilities.defined() || z_loss != 0; }
};
// Returns the gradient of the logits, in `dtype`, from `grad` of the weights, plus that of `losses`.
using RoutingWeightsBackward = at::Tensor(const at::Tensor& grad, const at::Tensor& scores,
                                          const at::Tensor& choices, const RoutingOptions& options,
                                          const RouterLossGradient& losses, at::ScalarType dtype);

inline void append(Values& values, const RoutedTokens& x) {
  append(values, x.scores);
  append(values, x.choices);
}

inline void append(Values& values, const RouterLossGradient& losses) {
  append(values, losses.of_probabilities.defined() ? &losses.of_probabilities : nullptr);
  append(values, losses.logits.defined() ? &losses.logits : nullptr);
  append(values, losses.z_loss);
}

namespace plain {
// Returns the gradient of the logits in the dtype of the scores. losses.any() is true.
at::Tensor router_loss_gradient(const at::Tensor& scores, const RoutingOptions& options,
                                const RouterLossGradient& losses);
at::Tensor expert_scores(const at::Tensor& logits, const RoutingOptions& options);
at::Tensor choose_experts(const at::Tensor& scores, const at::Tensor& bias, const RoutingOptions& options);
RouteTokens route_tokens;
RoutingWeights routing_weights;
RoutingWeightsBackward routing_weights_backward;
}  // namespace plain

namespace cpu {
RouteTokens route_tokens;
RoutingWeights routing_weights;
RoutingWeightsBackward routing_weights_backward;
}  // namespace cpu

}  // namespace hyperion::kernels
