// Which experts a token goes to, and with what weights: models/parts/experts/router.h.
#pragma once

#include "models/args/model_args.h"
#include "models/kernels/common/limits.h"
#include "models/kernels/kernel.h"

namespace hyperion::kernels {

struct RoutingOptions {
  RoutingOptions() = default;
  explicit RoutingOptions(const models::ModelArgs& args);

  int64_t experts = 0, top_k = 0;
  models::ScoreFunction score = {};
  bool normalise = false;  // the weights of a token are divided by their sum + kLeastSum
  double scale = 1;        // and multiplied by this
  int64_t groups = 0;      // of neighbouring experts; 0: none
  // A token's experts are of so many groups, those with the best sums of two scores.
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

// logits [tokens, experts]; bias [experts] -> scores [tokens, experts] in (0, 1), of opmath_dtype(); choices
// int64 [tokens, top_k]: those with the largest score plus bias, the best first, and of equal ones the lower.
// NaN is before all numbers, in groups' sums too, as in libtorch's order.
struct RoutedTokens {
  at::Tensor scores, choices;
};
using RouteTokens = RoutedTokens(const at::Tensor& logits, const at::Tensor& bias,
                                 const RoutingOptions& options);
// The weights of the chosen experts, [tokens, top_k] of the scores' dtype: their scores without the bias,
// normalised and scaled.
using RoutingWeights = at::Tensor(const at::Tensor& scores, const at::Tensor& choices,
                                  const RoutingOptions& options);
// grad: of the weights -> the gradient of the logits, in `dtype`.
using RoutingWeightsBackward = at::Tensor(const at::Tensor& grad, const at::Tensor& scores,
                                          const at::Tensor& choices, const RoutingOptions& options,
                                          at::ScalarType dtype);

inline void append(Values& values, const RoutedTokens& x) {
  append(values, x.scores);
  append(values, x.choices);
}

namespace plain {
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
