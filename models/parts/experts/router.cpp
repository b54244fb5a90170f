#include "models/parts/experts/router.h"

#include <utility>

#include <ATen/ops/arange.h>

#include "models/kernels/kernels.h"
#include "models/layers/node_state.h"

namespace hyperion::models {
namespace {

using at::Tensor;

struct SavedWeights : torch::CustomClassHolder {
  RoutingOptions options;
  at::ScalarType dtype = at::kFloat;  // of the logits
  std::shared_ptr<const kernels::RouterLossGradient> losses;
};

struct RoutingWeightsFunction : Function<RoutingWeightsFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& logits, const Tensor& scores,
                        const Tensor& choices, const RoutingOptions& options,
                        const std::shared_ptr<const kernels::RouterLossGradient>& losses) {
    const bool reads_logits = losses != nullptr && losses->z_loss != 0;
    context->save_for_backward({scores, choices, reads_logits ? logits : Tensor()});
    SavedWeights saved;
    saved.options = options;
    saved.dtype = logits.scalar_type();
    saved.losses = losses;
    keep_state(context, std::move(saved));
    return kernels::table().routing_weights(scores, choices, options);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto tensors = context->get_saved_variables();
    const auto saved = kept_state<SavedWeights>(context);
    kernels::RouterLossGradient losses;
    if (saved->losses != nullptr) losses = *saved->losses;
    losses.logits = tensors[2];
    return {kernels::table().routing_weights_backward(grads[0], tensors[0], tensors[1], saved->options,
                                                      losses, saved->dtype),
            Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

kernels::RoutedTokens route_tokens(const Tensor& logits, const Tensor& bias, const RoutingOptions& options) {
  return kernels::table().route_tokens(logits, bias, options);
}

Tensor balanced_choices(const Tensor& scores, const RoutingOptions& options) {
  return at::arange(scores.size(0) * options.top_k, scores.options().dtype(at::kInt))
      .remainder(options.experts)
      .view({scores.size(0), options.top_k});
}

Tensor routing_weights(const Tensor& logits, const Tensor& scores, const Tensor& choices,
                       const RoutingOptions& options,
                       const std::shared_ptr<const kernels::RouterLossGradient>& losses) {
  return RoutingWeightsFunction::apply(logits, scores, choices, options, losses);
}

}  // namespace hyperion::models
