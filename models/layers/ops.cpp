#include "models/layers/ops.h"

#include <optional>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>

#include "models/kernels/attention/attention.h"
#include "models/kernels/attention/sinks.h"
#include "models/kernels/kernels.h"
#include "models/layers/activation_checkpoint.h"
#include "models/layers/node_state.h"

namespace hyperion::models::ops {
namespace {

using at::Tensor;

struct EmbeddingFunction : Function<EmbeddingFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& tokens, const Tensor& weight) {
    context->save_for_backward({tokens});
    context->saved_data["rows"] = weight.size(0);
    return at::embedding(weight, tokens);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Tensor tokens = context->get_saved_variables()[0];
    const int64_t rows = context->saved_data["rows"].toInt();
    return {Tensor(), at::embedding_dense_backward(grads[0], tokens, rows, /*padding_idx=*/-1, false)};
  }
};

// Returns the sum, then the norm once for each consumer. Without a residual the sum is x.
struct AddRmsNormFunction : Function<AddRmsNormFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& x,
                               const std::optional<Tensor>& residual, const Tensor& weight, double eps,
                               int64_t consumers) {
    context->set_materialize_grads(false);
    context->saved_data["adds"] = residual.has_value();
    variable_list results;
    if (!residual) {
      auto [output, rstd] = kernels::table().rms_norm(x, weight, eps);
      context->save_for_backward({x, weight, rstd});
      results = {x, output};
    } else {
      context->saved_data["shape"] = x.sizes();
      auto [sum, output, rstd] = kernels::table().add_rms_norm(x, *residual, weight, eps);
      context->save_for_backward({sum, weight, rstd});
      results = {sum, output};
    }
    const at::AutoDispatchBelowADInplaceOrView below_autograd;  // each alias is an output of its own
    for (int64_t consumer = 1; consumer < consumers; ++consumer) results.push_back(at::alias(results[1]));
    return results;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Tensor& grad_sum = grads[0];
    variable_list terms;  // the terms of the norm's gradient
    for (size_t consumer = 1; consumer < grads.size(); ++consumer)
      if (grads[consumer].defined()) terms.push_back(grads[consumer]);
    Tensor grad_x = grad_sum, grad_weight;
    if (!terms.empty()) {
      const auto saved = context->get_saved_variables();
      const auto more = at::TensorList(terms).slice(1);
      std::tie(grad_x, grad_weight) =
          grad_sum.defined()
              ? kernels::table().add_rms_norm_backward(terms[0], grad_sum, saved[0], saved[1], saved[2], more)
              : kernels::table().rms_norm_backward(kernels::sum_of_terms(terms[0], more), saved[0], saved[1],
                                                   saved[2]);
    }
    const bool adds = context->saved_data["adds"].toBool() && grad_x.defined();
    return {adds ? grad_x.view(context->saved_data["shape"].toIntVector()) : grad_x, adds ? grad_x : Tensor(),
            grad_weight, Tensor(), Tensor()};
  }
};

SumAndNorm sum_and_norm(const Tensor& x, const std::optional<Tensor>& residual, const Tensor& weight,
                        double eps, int64_t consumers) {
  const variable_list all = AddRmsNormFunction::apply(x, residual, weight, eps, consumers);
  return {all[0], {all.begin() + 1, all.end()}};
}

struct RopeQkvFunction : Function<RopeQkvFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& cos, const Tensor& sin, int64_t style, int64_t parts) {
    context->save_for_backward({cos, sin});
    context->saved_data["style"] = style;
    context->saved_data["parts"] = parts;
    // Values are copied unless they own their memory: a view would keep the packed product alive.
    const bool keeps = parts == 1 && v.is_contiguous() &&
                       v.numel() * v.element_size() == static_cast<int64_t>(v.storage().nbytes());
    kernels::Heads rotated = kernels::table().rope_heads({q, k, keeps ? Tensor() : v}, cos, sin,
                                                         static_cast<RopeStyle>(style), parts);
    return {rotated.q, rotated.k, keeps ? v : rotated.v};
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const auto style = static_cast<RopeStyle>(context->saved_data["style"].toInt());
    kernels::Heads back = kernels::table().rope_heads_backward(
        {grads[0], grads[1], grads[2]}, saved[0], saved[1], style, context->saved_data["parts"].toInt());
    return {back.q, back.k, back.v, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

struct GatedActivationFunction : Function<GatedActivationFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& gate, const Tensor& up, int64_t activation) {
    context->save_for_backward({gate, up});
    context->saved_data["activation"] = activation;
    return kernels::table().gated_activation(gate, up, static_cast<Activation>(activation));
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    auto [gate, up] = kernels::table().gated_activation_backward(
        grads[0], saved[0], saved[1], static_cast<Activation>(context->saved_data["activation"].toInt()));
    return {gate, up, Tensor()};
  }
};

struct ClampedGateFunction : Function<ClampedGateFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& h) {
    context->save_for_backward({h});
    return kernels::table().clamped_gate(h);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {kernels::table().clamped_gate_backward(grads[0], context->get_saved_variables()[0])};
  }
};

struct AttentionState : torch::CustomClassHolder {
  explicit AttentionState(kernels::AttentionMask mask) : mask(std::move(mask)) {}
  kernels::AttentionMask mask;
};

struct AttentionFunction : Function<AttentionFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const std::optional<Tensor>& given_sinks, const kernels::AttentionMask& mask,
                        SelectiveCheckpoint* selective) {
    const Tensor sinks = given_sinks.value_or(Tensor());
    variable_list results = saved_or_computed(selective, /*save=*/true, [&] {
      kernels::AttentionResult result = kernels::attention_forward(q, k, v, mask);
      if (sinks.defined()) kernels::add_sinks(result.output, result.lse, sinks);
      SelectiveCheckpoint::Results all = {result.output, result.lse};
      all.insert(all.end(), result.extras.begin(), result.extras.end());
      return all;
    });
    Tensor output = results[0];
    variable_list saved = {q, k, v, sinks};
    saved.insert(saved.end(), results.begin(), results.end());
    context->save_for_backward(saved);
    keep_state(context, AttentionState(mask));
    return output;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const auto state = kept_state<AttentionState>(context);
    const Tensor& sinks = saved[3];
    const kernels::AttentionResult result{saved[4], saved[5], {saved.begin() + 6, saved.end()}};
    auto [q, k, v] = kernels::attention_backward(grads[0], saved[0], saved[1], saved[2], state->mask, result);
    const Tensor grad_sinks =
        sinks.defined() ? kernels::sinks_gradient(grads[0], result.output, result.lse, sinks) : Tensor();
    return {q, k, v, grad_sinks, Tensor(), Tensor()};
  }
};

struct ResidualSumFunction : Function<ResidualSumFunction> {
  static Tensor forward(AutogradContext*, const Tensor& stream, const Tensor& x, bool adds) {
    return adds ? stream + x : x;
  }
  static variable_list backward(AutogradContext*, const variable_list& grads) {
    return {grads[0], grads[0], Tensor()};
  }
};

}  // namespace

Tensor embedding(const Tensor& tokens, const Tensor& weight) {
  return EmbeddingFunction::apply(tokens, weight);
}
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return rms_norm_of_residual(x, weight, eps).normed[0];
}
SumAndNorm add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                        int64_t consumers) {
  return sum_and_norm(x, residual, weight, eps, consumers);
}
SumAndNorm rms_norm_of_residual(const Tensor& x, const Tensor& weight, double eps, int64_t consumers) {
  return sum_and_norm(x, std::nullopt, weight, eps, consumers);
}
RotatedHeads rope_qkv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cos, const Tensor& sin,
                      RopeStyle style) {
  const int64_t parts = q.dim() == 5 ? q.size(0) : 1;
  variable_list all = RopeQkvFunction::apply(q, k, v, cos, sin, static_cast<int64_t>(style), parts);
  return {all[0], all[1], all[2]};
}
Tensor gated_activation(const Tensor& gate, const Tensor& up, Activation activation) {
  return GatedActivationFunction::apply(gate, up, static_cast<int64_t>(activation));
}
Tensor clamped_gate(const Tensor& h) {
  return ClampedGateFunction::apply(h);
}
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const kernels::AttentionMask& mask,
                 SelectiveCheckpoint* selective, const Tensor& sinks) {
  return AttentionFunction::apply(q, k, v, sinks.defined() ? std::optional(sinks) : std::nullopt, mask,
                                  selective);
}
Tensor residual_sum(const Tensor& stream, const Tensor& x, const BlockRun& run) {
  return ResidualSumFunction::apply(stream, x, !run.recomputes());
}

}  // namespace hyperion::models::ops
