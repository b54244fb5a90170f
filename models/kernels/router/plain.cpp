#include <cmath>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros_like.h>

#include "models/kernels/common/dtype.h"
#include "models/kernels/router/router.h"

namespace hyperion::kernels {

RoutingOptions::RoutingOptions(const models::ExpertArgs& args)
    : experts(args.num_experts),
      top_k(args.top_k),
      score(args.score_func),
      normalise(args.route_norm),
      scale(args.route_scale),
      groups(args.expert_groups),
      limited_groups(args.limited_groups) {}

namespace plain {
namespace {

using at::Tensor;

Tensor largest_first(const Tensor& values) {
  return std::get<1>(at::sort(values, /*stable=*/true, /*dim=*/-1, /*descending=*/true));
}

}  // namespace

Tensor expert_scores(const Tensor& logits, const RoutingOptions& options) {
  const Tensor wide = logits.to(opmath_dtype(logits));
  return options.score == models::ScoreFunction::kSoftmax ? at::softmax(wide, -1) : at::sigmoid(wide);
}

Tensor choose_experts(const Tensor& scores, const Tensor& bias, const RoutingOptions& options) {
  Tensor biased = scores + bias.to(scores.scalar_type());
  if (options.groups > 0) {
    const Tensor grouped = biased.view({scores.size(0), options.groups, -1});
    const Tensor of_groups =
        std::get<0>(at::sort(grouped, true, -1, /*descending=*/true)).narrow(-1, 0, 2).sum(-1);
    const Tensor kept = largest_first(of_groups).narrow(1, 0, options.limited_groups);
    const Tensor left_out =
        at::ones_like(of_groups, of_groups.options().dtype(at::kBool)).scatter_(1, kept, false);
    biased = grouped.masked_fill(left_out.unsqueeze(-1), -INFINITY).view(scores.sizes());
  }
  return largest_first(biased).narrow(1, 0, options.top_k).to(at::kInt);
}

RoutedTokens route_tokens(const Tensor& logits, const Tensor& bias, const RoutingOptions& options) {
  Tensor scores = expert_scores(logits, options);
  Tensor choices = choose_experts(scores, bias, options);
  return {std::move(scores), std::move(choices)};
}

Tensor routing_weights(const Tensor& scores, const Tensor& choices, const RoutingOptions& options) {
  Tensor weights = scores.gather(1, choices.to(at::kLong));
  if (options.normalise) weights = weights / (weights.sum(1, /*keepdim=*/true) + kLeastSum);
  return weights * options.scale;
}

Tensor router_loss_gradient(const Tensor& scores, const RoutingOptions& options,
                            const RouterLossGradient& losses) {
  Tensor grad = at::zeros_like(scores);
  if (const Tensor& given = losses.of_probabilities; given.defined()) {
    const Tensor s = scores.reshape({given.size(0), -1, options.experts}), of_p = given.unsqueeze(1);
    const bool softmax = options.score == models::ScoreFunction::kSoftmax;
    const Tensor sum = softmax ? at::ones_like(of_p.select(2, 0).unsqueeze(2)) : s.sum(2, /*keepdim=*/true);
    const Tensor of_s = (of_p - (of_p * s).sum(2, /*keepdim=*/true) / sum) / sum;
    grad = (softmax ? s * of_s : s * (1 - s) * of_s).view_as(scores);
  }
  if (losses.z_loss != 0) {
    const Tensor wide = losses.logits.to(scores.scalar_type()), lse = wide.logsumexp(1, /*keepdim=*/true);
    grad = grad + (wide - lse).exp_() * (2 * losses.z_loss * lse);
  }
  return grad;
}

Tensor routing_weights_backward(const Tensor& grad_weights, const Tensor& scores, const Tensor& given_choices,
                                const RoutingOptions& options, const RouterLossGradient& losses,
                                at::ScalarType dtype) {
  const Tensor choices = given_choices.to(at::kLong);
  Tensor grad = grad_weights * options.scale;
  if (options.normalise) {
    const Tensor chosen = scores.gather(1, choices), sum = chosen.sum(1, true) + kLeastSum;
    grad = (grad - (grad * chosen).sum(1, true) / sum) / sum;
  }
  const Tensor of_scores = at::zeros_like(scores).scatter_(1, choices, grad);
  const Tensor grad_logits = options.score == models::ScoreFunction::kSoftmax
                                 ? scores * (of_scores - (of_scores * scores).sum(1, true))
                                 : of_scores * scores * (1 - scores);
  return (losses.any() ? grad_logits + router_loss_gradient(scores, options, losses) : grad_logits).to(dtype);
}

}  // namespace plain
}  // namespace hyperion::kernels
