#include "models/ops.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "models/activation_checkpoint.h"
#include "models/kernels/attention/attention.h"
#include "models/kernels/gated_activation/gated_activation.h"
#include "models/kernels/rms_norm/rms_norm.h"
#include "models/kernels/rope/rope.h"
#include "models/maybe_tensor.h"

namespace hyperion::models::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

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

struct RmsNormFunction : Function<RmsNormFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight, double eps) {
    auto [output, rstd] = kernels::rms_norm_forward(x, weight, eps);
    context->save_for_backward({x, weight, rstd});
    return output;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    auto [x, weight] = kernels::rms_norm_backward(grads[0], saved[0], saved[1], saved[2]);
    return {x, weight, Tensor()};
  }
};

// fp32 [many] zeros beside x, for kernels that raise them to the largest magnitudes of what they write.
Tensor new_amaxes(int64_t many, const Tensor& x) {
  return at::zeros({many}, x.options().dtype(at::kFloat));
}

// Without a residual the sum is x itself. Results: the sum, the norm once for each reader, and its amax where
// that is wanted.
struct AddRmsNormFunction : Function<AddRmsNormFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& x, const MaybeTensor& residual,
                               const Tensor& weight, double eps, int64_t readers, bool wants_amax,
                               const MaybeTensor& gradient_amax) {
    context->set_materialize_grads(false);
    context->saved_data["adds"] = residual.has_value();
    context->saved_data["readers"] = readers;
    context->saved_data["finds_amax"] = gradient_amax.has_value();
    variable_list results;
    const Tensor amax = wants_amax ? new_amaxes(1, x) : Tensor();
    if (!residual) {
      auto [output, rstd] = kernels::rms_norm_forward(x, weight, eps, amax);
      context->save_for_backward({x, weight, rstd});
      results = {x, output};
    } else {
      context->saved_data["shape"] = x.sizes();
      auto [sum, output, rstd] = kernels::add_rms_norm_forward(x, *residual, weight, eps, amax);
      context->save_for_backward({sum, weight, rstd});
      results = {sum, output};
    }
    if (wants_amax) {
      context->mark_non_differentiable({amax});
      results.push_back(amax);
    }
    const at::AutoDispatchBelowADInplaceOrView below_autograd;  // each reader's is a result of its own
    for (int64_t reader = 1; reader < readers; ++reader)
      results.insert(results.begin() + 1 + reader, at::alias(results[1]));
    return results;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const int64_t readers = context->saved_data["readers"].toInt();
    const Tensor& grad_sum = grads[0];
    variable_list terms;
    for (int64_t reader = 0; reader < readers; ++reader)
      if (grads[1 + reader].defined()) terms.push_back(grads[1 + reader]);
    Tensor grad_x = grad_sum, grad_weight, amax;
    if (!terms.empty()) {
      const auto saved = context->get_saved_variables();
      const auto more = at::TensorList(terms).slice(1);
      if (grad_sum.defined()) {
        if (context->saved_data["finds_amax"].toBool()) amax = new_amaxes(1, grad_sum);
        std::tie(grad_x, grad_weight) =
            kernels::add_rms_norm_backward(terms[0], grad_sum, saved[0], saved[1], saved[2], more, amax);
      } else {
        std::tie(grad_x, grad_weight) =
            kernels::rms_norm_backward(kernels::sum_of_terms(terms[0], more), saved[0], saved[1], saved[2]);
      }
    }
    const bool adds = context->saved_data["adds"].toBool() && grad_x.defined();
    return {adds ? grad_x.view(context->saved_data["shape"].toIntVector()) : grad_x,
            adds ? grad_x : Tensor(),
            grad_weight,
            Tensor(),
            Tensor(),
            Tensor(),
            amax};
  }
};

SumAndNorm sum_and_norm(const Tensor& x, const MaybeTensor& residual, const Tensor& weight, double eps,
                        const NormReaders& readers, const Tensor& gradient_amax) {
  variable_list all = AddRmsNormFunction::apply(x, residual, weight, eps, readers.layers, readers.want_amax,
                                                if_defined(gradient_amax));
  SumAndNorm result = {all[0], all[1]};
  const auto first = all.begin() + 2, last = all.begin() + 1 + readers.layers;
  result.again.assign(first, last);
  if (last != all.end()) result.amax = *last;
  return result;
}

struct RopeQkvFunction : Function<RopeQkvFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& cos, const Tensor& sin, int64_t style, int64_t parts,
                               const MaybeTensor& gradient_amaxes) {
    context->save_for_backward({cos, sin});
    context->saved_data["style"] = style;
    context->saved_data["parts"] = parts;
    context->saved_data["finds_amaxes"] = gradient_amaxes.has_value();
    kernels::Heads turned = kernels::rope_heads({q, k, v}, cos, sin, static_cast<RopeStyle>(style), parts);
    return {turned.q, turned.k, turned.v};
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const auto style = static_cast<RopeStyle>(context->saved_data["style"].toInt());
    const int64_t parts = context->saved_data["parts"].toInt();
    const Tensor amaxes = context->saved_data["finds_amaxes"].toBool() ? new_amaxes(3, grads[0]) : Tensor();
    kernels::Heads back = kernels::rope_heads_backward({grads[0], grads[1], grads[2]}, saved[0], saved[1],
                                                       style, parts, amaxes);
    return {back.q, back.k, back.v, Tensor(), Tensor(), Tensor(), Tensor(), amaxes};
  }
};

// With wants_amax the result's amax is a second result.
struct SwigluFunction : Function<SwigluFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& gate, const Tensor& up,
                               bool wants_amax, const MaybeTensor& gradient_amaxes) {
    context->save_for_backward({gate, up});
    context->saved_data["finds_amaxes"] = gradient_amaxes.has_value();
    context->set_materialize_grads(false);  // of amax, which has none
    if (!wants_amax) return {kernels::swiglu_forward(gate, up)};
    const Tensor amax = new_amaxes(1, gate);
    context->mark_non_differentiable({amax});
    return {kernels::swiglu_forward(gate, up, amax), amax};
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const Tensor amaxes = context->saved_data["finds_amaxes"].toBool() ? new_amaxes(2, grads[0]) : Tensor();
    auto [gate, up] = kernels::swiglu_backward(grads[0], saved[0], saved[1], amaxes);
    return {gate, up, Tensor(), amaxes};
  }
};

struct AttentionFunction : Function<AttentionFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const kernels::Documents& documents) {
    variable_list results = saved_or_computed(/*save=*/true, [&] {
      kernels::AttentionResult result = kernels::attention_forward(q, k, v, documents);
      SelectiveCheckpoint::Results all = {result.output};
      all.insert(all.end(), result.extras.begin(), result.extras.end());
      return all;
    });
    Tensor output = results[0];
    variable_list saved = {q, k, v, documents.first_keys, documents.bounds};
    saved.insert(saved.end(), results.begin(), results.end());
    context->save_for_backward(saved);
    context->saved_data["longest"] = documents.longest;
    return output;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const kernels::Documents documents{saved[3], saved[4], context->saved_data["longest"].toInt()};
    const kernels::AttentionResult result{saved[5], {saved.begin() + 6, saved.end()}};
    auto [q, k, v] = kernels::attention_backward(grads[0], saved[0], saved[1], saved[2], documents, result);
    return {q, k, v, Tensor()};
  }
};

}  // namespace

Tensor embedding(const Tensor& tokens, const Tensor& weight) {
  return EmbeddingFunction::apply(tokens, weight);
}
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return RmsNormFunction::apply(x, weight, eps);
}
SumAndNorm add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                        const NormReaders& readers, const Tensor& gradient_amax) {
  return sum_and_norm(x, residual, weight, eps, readers, gradient_amax);
}
SumAndNorm rms_norm_of_stream(const Tensor& x, const Tensor& weight, double eps, const NormReaders& readers,
                              const Tensor& gradient_amax) {
  return sum_and_norm(x, std::nullopt, weight, eps, readers, gradient_amax);
}
RotatedHeads rope_qkv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cos, const Tensor& sin,
                      RopeStyle style, int64_t parts, const Tensor& gradient_amaxes) {
  variable_list all = RopeQkvFunction::apply(q, k, v, cos, sin, static_cast<int64_t>(style), parts,
                                             if_defined(gradient_amaxes));
  return {all[0], all[1], all[2]};
}
Tensor swiglu(const Tensor& gate, const Tensor& up) {
  return SwigluFunction::apply(gate, up, /*wants_amax=*/false, MaybeTensor())[0];
}
ValuesWithAmax swiglu_with_amax(const Tensor& gate, const Tensor& up, const Tensor& gradient_amaxes) {
  variable_list both = SwigluFunction::apply(gate, up, /*wants_amax=*/true, if_defined(gradient_amaxes));
  return {both[0], both[1]};
}
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const kernels::Documents& documents) {
  return AttentionFunction::apply(q, k, v, documents);
}

}  // namespace hyperion::models::ops
