#include "models/kernels/operators.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "models/kernels/gated_activation/gated_activation.h"
#include "models/maybe_tensor.h"

namespace hyperion::kernels::operators {
namespace {

using at::Tensor;

models::RopeStyle style_of(bool interleaved) {
  return interleaved ? models::RopeStyle::kInterleaved : models::RopeStyle::kHalfSplit;
}

std::tuple<Tensor, Tensor, Tensor> plain_rope_heads(const Tensor& q, const Tensor& k, const MaybeTensor& v,
                                                    const Tensor& cos, const Tensor& sin, bool interleaved,
                                                    int64_t parts) {
  Heads turned = plain::rope_heads({q, k, v.value_or(k)}, cos, sin, style_of(interleaved), parts);
  return {turned.q, turned.k, v ? turned.v.clone() : Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> plain_rope_heads_backward(const Tensor& q, const Tensor& k,
                                                             const Tensor& v, const Tensor& cos,
                                                             const Tensor& sin, bool interleaved,
                                                             int64_t parts) {
  Heads back = plain::rope_heads_backward({q, k, v}, cos, sin, style_of(interleaved), parts);
  return {back.q, back.k, back.v.clone()};
}

std::tuple<Tensor, Tensor> plain_swiglu_backward(const Tensor& grad, const Tensor& gate, const Tensor& up) {
  return plain::swiglu_backward(grad, gate, up);
}

std::tuple<Tensor, Tensor, Tensor> plain_add_rms_norm(const Tensor& x, const Tensor& residual,
                                                      const Tensor& weight, double eps) {
  AddRmsNormResult result = plain::add_rms_norm_forward(x, residual, weight, eps);
  return {result.sum, result.output, result.rstd};
}

std::tuple<Tensor, Tensor> plain_add_rms_norm_backward(const Tensor& grad, const Tensor& grad_sum,
                                                       const Tensor& sum, const Tensor& weight,
                                                       const Tensor& rstd, at::TensorList more) {
  return plain::add_rms_norm_backward(grad, grad_sum, sum, weight, rstd, more);
}

Tensor plain_cross_entropy(Tensor& logits, const Tensor& labels, const MaybeTensor& scale) {
  return plain::cross_entropy(logits, labels, scale ? &*scale : nullptr);
}

Tensor plain_vocab_statistics(const Tensor& logits, const Tensor& labels, int64_t first, int64_t whole) {
  return plain::vocab_statistics(logits, labels, {first, whole});
}

Tensor& plain_vocab_gradient(Tensor& logits, const Tensor& labels, int64_t first, int64_t whole,
                             const Tensor& log_sum_exp, const Tensor& scale) {
  plain::vocab_gradient(logits, labels, {first, whole}, log_sum_exp, scale);
  return logits;
}

// The operator whose plain form is given, without autograd: models/ops.h has the nodes.
template <auto kPlain>
struct Operator;
template <typename Result, typename... Arguments, Result (*kPlain)(Arguments...)>
struct Operator<kPlain> {
  static Result call(const char* name, Arguments... given) {
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Result(Arguments...)>();
    const at::AutoDispatchBelowAutograd no_gradients;
    return op.call(std::forward<Arguments>(given)...);
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(hyperion, library) {
  library.def(
      "rope_heads(Tensor q, Tensor k, Tensor? v, Tensor cos, Tensor sin, bool interleaved, int parts) -> "
      "(Tensor, Tensor, Tensor)");
  library.def(
      "rope_heads_backward(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, bool interleaved, int "
      "parts) -> (Tensor, Tensor, Tensor)");
  library.def("swiglu(Tensor gate, Tensor up) -> Tensor");
  library.def("swiglu_backward(Tensor grad, Tensor gate, Tensor up) -> (Tensor, Tensor)");
  library.def(
      "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)");
  library.def(
      "add_rms_norm_backward(Tensor grad, Tensor grad_sum, Tensor sum, Tensor weight, Tensor rstd, Tensor[] "
      "more) -> (Tensor, Tensor)");
  library.def("cross_entropy_(Tensor(a!) logits, Tensor labels, Tensor? scale) -> Tensor");
  library.def("vocab_statistics(Tensor logits, Tensor labels, int first, int whole) -> Tensor");
  library.def(
      "vocab_gradient_(Tensor(a!) logits, Tensor labels, int first, int whole, Tensor log_sum_exp, Tensor "
      "scale) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(hyperion, CompositeExplicitAutograd, library) {
  library.impl("rope_heads", plain_rope_heads);
  library.impl("rope_heads_backward", plain_rope_heads_backward);
  library.impl("swiglu", plain::swiglu_forward);
  library.impl("swiglu_backward", plain_swiglu_backward);
  library.impl("add_rms_norm", plain_add_rms_norm);
  library.impl("add_rms_norm_backward", plain_add_rms_norm_backward);
  library.impl("cross_entropy_", plain_cross_entropy);
  library.impl("vocab_statistics", plain_vocab_statistics);
  library.impl("vocab_gradient_", plain_vocab_gradient);
}

Heads rope_heads(const Heads& x, const Tensor& cos, const Tensor& sin, models::RopeStyle style,
                 int64_t parts) {
  auto [q, k, v] = Operator<plain_rope_heads>::call("hyperion::rope_heads", x.q, x.k, if_defined(x.v), cos,
                                                    sin, style == models::RopeStyle::kInterleaved, parts);
  return {std::move(q), std::move(k), std::move(v)};
}

Heads rope_heads_backward(const Heads& grads, const Tensor& cos, const Tensor& sin, models::RopeStyle style,
                          int64_t parts) {
  auto [q, k, v] =
      Operator<plain_rope_heads_backward>::call("hyperion::rope_heads_backward", grads.q, grads.k, grads.v,
                                                cos, sin, style == models::RopeStyle::kInterleaved, parts);
  return {std::move(q), std::move(k), std::move(v)};
}

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  return Operator<plain::swiglu_forward>::call("hyperion::swiglu", gate, up);
}

std::pair<Tensor, Tensor> swiglu_backward(const Tensor& grad, const Tensor& gate, const Tensor& up) {
  auto [of_gate, of_up] = Operator<plain_swiglu_backward>::call("hyperion::swiglu_backward", grad, gate, up);
  return {std::move(of_gate), std::move(of_up)};
}

AddRmsNormResult add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps) {
  auto [sum, output, rstd] =
      Operator<plain_add_rms_norm>::call("hyperion::add_rms_norm", x, residual, weight, eps);
  return {std::move(sum), std::move(output), std::move(rstd)};
}

std::pair<Tensor, Tensor> add_rms_norm_backward(const Tensor& grad, const Tensor& grad_sum, const Tensor& sum,
                                                const Tensor& weight, const Tensor& rstd,
                                                at::TensorList more) {
  auto [grad_x, grad_weight] = Operator<plain_add_rms_norm_backward>::call(
      "hyperion::add_rms_norm_backward", grad, grad_sum, sum, weight, rstd, more);
  return {std::move(grad_x), std::move(grad_weight)};
}

Tensor cross_entropy(const Tensor& logits, const Tensor& labels, const Tensor* scale) {
  Tensor in_place = logits;
  return Operator<plain_cross_entropy>::call("hyperion::cross_entropy_", in_place, labels,
                                             scale != nullptr ? MaybeTensor(*scale) : std::nullopt);
}

Tensor vocab_statistics(const Tensor& logits, const Tensor& labels, const VocabPart& part) {
  return Operator<plain_vocab_statistics>::call("hyperion::vocab_statistics", logits, labels, part.first,
                                                part.whole);
}

void vocab_gradient(const Tensor& logits, const Tensor& labels, const VocabPart& part,
                    const Tensor& log_sum_exp, const Tensor& scale) {
  Tensor in_place = logits;
  Operator<plain_vocab_gradient>::call("hyperion::vocab_gradient_", in_place, labels, part.first, part.whole,
                                       log_sum_exp, scale);
}

}  // namespace hyperion::kernels::operators
