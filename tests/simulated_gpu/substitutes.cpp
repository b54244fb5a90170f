#include "tests/simulated_gpu/substitutes.h"

#include <map>

#include <ATen/ATen.h>

#include "models/kernels/clamped_gate/clamped_gate.h"
#include "models/kernels/cross_entropy/cross_entropy.h"
#include "models/kernels/expert_rows/expert_rows.h"
#include "models/kernels/gated_activation/gated_activation.h"
#include "models/kernels/group_bias/group_bias.h"
#include "models/kernels/key_chunks/key_chunks.h"
#include "models/kernels/latent_heads/latent_heads.h"
#include "models/kernels/merge_parts/merge_parts.h"
#include "models/kernels/packed_sums/packed_sums.h"
#include "models/kernels/rms_norm/rms_norm.h"
#include "models/kernels/rope/rope.h"
#include "models/kernels/router/router.h"
#include "tests/simulated_gpu/attention_substitutes.h"
#include "tests/simulated_gpu/rounded_states.h"

namespace simulated_gpu {
namespace {

using at::Tensor;

Tensor tensor(const c10::IValue& value) {
  return value.isNone() ? Tensor() : value.toTensor();
}
Values scaled_product(const Values& a) {
  const auto wide = [](const Tensor& t) { return t.to(at::kFloat); };
  const auto dtype = a[6].isNone() ? at::kFloat : a[6].toScalarType();
  Tensor product =
      wide(a[0].toTensor()).mul(a[2].toTensor()).matmul(wide(a[1].toTensor()).mul(a[3].toTensor()));
  return {product.to(dtype)};
}

// Groups of rows of a by the matrices of b, or of columns of a by rows of b, both with the scales of each
// group: self, mat2, scale_a, scale_b, offs.
Values scaled_grouped_product(const Values& a) {
  const Tensor ends = a[4].toTensor();
  Tensor left = a[0].toTensor().to(at::kFloat), right = a[1].toTensor().to(at::kFloat),
         of_left = a[2].toTensor(), of_right = a[3].toTensor();
  if (right.dim() == 2) {
    const Tensor group =
        at::bucketize(at::arange(right.size(0), ends.options()), ends, /*out_int32=*/false, /*right=*/true)
            .clamp_max_(ends.size(0) - 1);
    left = left * of_left.view({ends.size(0), -1}).index_select(0, group).t();
    right = right * of_right.view({ends.size(0), -1}).index_select(0, group);
  } else {
    left = left * of_left.unsqueeze(1);
    right = right * of_right.unsqueeze(1);
  }
  return {at::_grouped_mm(left, right, ends).to(at::kBFloat16)};
}

// Of bf16 operands in fp32: self, mat2, dtype; and into the last argument: self, mat1, mat2, dtype, beta,
// alpha.
Values wide_product(const Values& a) {
  return {a[0].toTensor().to(at::kFloat).mm(a[1].toTensor().to(at::kFloat))};
}
Values add_wide_product(const Values& a) {
  Tensor out = a[6].toTensor();
  at::addmm_out(out, a[0].toTensor(), a[1].toTensor().to(at::kFloat), a[2].toTensor().to(at::kFloat),
                a[4].toScalar(), a[5].toScalar());
  return {out};
}

// Of y = x * rstd * weight over the last dimensions, whose shape is a[2].
Values fused_rms_norm_backward(const Values& a) {
  const Tensor x = a[1].toTensor(), rstd = a[3].toTensor(), weight = tensor(a[4]);
  const auto normalized = static_cast<int64_t>(a[2].toIntVector().size());
  std::vector<int64_t> leading, last;
  for (int64_t d = 0; d < x.dim(); ++d) (d < x.dim() - normalized ? leading : last).push_back(d);
  const Tensor grad = a[0].toTensor().to(at::kFloat), scaled = x.to(at::kFloat) * rstd;
  const Tensor weighted = weight.defined() ? grad * weight.to(at::kFloat) : grad;
  const Tensor grad_x = rstd * (weighted - scaled * (weighted * scaled).mean(last, /*keepdim=*/true));
  if (!weight.defined()) return {grad_x.to(x.scalar_type()), Tensor()};
  const Tensor product = grad * scaled;
  return {grad_x.to(x.scalar_type()),
          (leading.empty() ? product : product.sum(leading)).to(weight.scalar_type())};
}

// --- the kernels of models/kernels/kernels.h by their plain forms; what they write in place is there then
// ---

namespace plain = hyperion::kernels::plain;
using hyperion::models::Activation;
using hyperion::models::RopeStyle;

template <auto kRope>
Values rope_heads(const Values& a) {
  const Tensor q = a[0].toTensor(), k = a[1].toTensor(), v = a[2].toTensor();
  const auto heads =
      kRope({q, k, v}, a[3].toTensor(), a[4].toTensor(), static_cast<RopeStyle>(a[5].toInt()), a[6].toInt());
  return {heads.q, heads.k, heads.v};
}
Values gated_activation(const Values& a) {
  return {plain::gated_activation(a[0].toTensor(), a[1].toTensor(), static_cast<Activation>(a[2].toInt()))};
}
Values gated_activation_backward(const Values& a) {
  const auto [gate, up] = plain::gated_activation_backward(a[0].toTensor(), a[1].toTensor(), a[2].toTensor(),
                                                           static_cast<Activation>(a[3].toInt()));
  return {gate, up};
}
Values clamped_gate(const Values& a) {
  return {plain::clamped_gate(a[0].toTensor())};
}
Values clamped_gate_backward(const Values& a) {
  return {plain::clamped_gate_backward(a[0].toTensor(), a[1].toTensor())};
}
Values add_group_bias(const Values& a) {
  plain::add_group_bias(a[0].toTensor(), a[1].toTensor(), a[2].toTensor());
  return {};
}
Values sum_groups(const Values& a) {
  return {plain::sum_groups(a[0].toTensor(), a[1].toTensor())};
}
Values add_rms_norm(const Values& a) {
  const auto result = plain::add_rms_norm(a[0].toTensor(), a[1].toTensor(), a[2].toTensor(), a[3].toDouble());
  return {result.sum, result.output, result.rstd};
}
Values add_rms_norm_backward(const Values& a) {
  const auto [x, weight] =
      plain::add_rms_norm_backward(a[0].toTensor(), a[1].toTensor(), a[2].toTensor(), a[3].toTensor(),
                                   a[4].toTensor(), a[5].toTensorVector());
  return {x, weight};
}
Values cross_entropy(const Values& a) {
  const Tensor scale = tensor(a[2]), *given = scale.defined() ? &scale : nullptr;
  return {plain::cross_entropy(a[0].toTensor(), a[1].toTensor(), given, a[3].toDouble())};
}
Values latent_heads(const Values& a) {
  const auto heads = plain::latent_heads(a[0].toTensor(), a[1].toTensor(), a[2].toTensor(), a[3].toTensor(),
                                         a[4].toTensor(), a[5].toDouble(), a[6].toInt());
  return {heads.q, heads.k, heads.v};
}
Values latent_heads_backward(const Values& a) {
  const auto grads =
      plain::latent_heads_backward({a[0].toTensor(), a[1].toTensor(), a[2].toTensor()}, a[3].toTensor(),
                                   a[4].toTensor(), a[5].toDouble(), a[6].toInt());
  return {grads.q, grads.kv, grads.shared};
}
template <hyperion::kernels::PackKeys* kPlain>
Values pack_keys(const Values& a) {
  kPlain(a[0].toTensor(), a[1].toTensor(), a[2].toTensor());
  return {};
}
Values unpack_keys(const Values& a) {
  plain::unpack_keys(a[0].toTensor(), a[1].toTensor(), a[2].toInt());
  return {};
}
Values merge_parts(const Values& a) {
  plain::merge_parts(a[0].toTensor(), a[1].toTensor(), a[2].toTensor(), a[3].toTensor());
  return {};
}
hyperion::kernels::RoutingOptions routing_options(const Values& a, size_t first) {
  hyperion::kernels::RoutingOptions options;
  options.experts = a[first].toInt();
  options.top_k = a[first + 1].toInt();
  options.score = static_cast<hyperion::models::ScoreFunction>(a[first + 2].toInt());
  options.normalise = a[first + 3].toInt() != 0;
  options.scale = a[first + 4].toDouble();
  options.groups = a[first + 5].toInt();
  options.limited_groups = a[first + 6].toInt();
  return options;
}
Values route_tokens(const Values& a) {
  const auto routed = plain::route_tokens(a[0].toTensor(), a[1].toTensor(), routing_options(a, 2));
  return {routed.scores, routed.choices};
}
Values routing_weights(const Values& a) {
  return {plain::routing_weights(a[0].toTensor(), a[1].toTensor(), routing_options(a, 2))};
}
Values routing_weights_backward(const Values& a) {
  return {plain::routing_weights_backward(
      a[0].toTensor(), a[1].toTensor(), a[2].toTensor(), routing_options(a, 3),
      {tensor(a[10]), tensor(a[11]), a[12].toDouble()}, static_cast<at::ScalarType>(a[13].toInt()))};
}
hyperion::kernels::RowOrder row_order(const Values& a, size_t first) {
  return {a[first].toTensor(),     a[first + 1].toTensor(), a[first + 2].toTensor(),
          a[first + 3].toTensor(), a[first + 4].toTensor(), a[first + 5].toTensor()};
}
Values order_rows(const Values& a) {
  const auto order = plain::order_rows(a[0].toTensor(), a[1].toInt(), a[2].toInt());
  return {order.assignments, order.tokens, order.rows, order.expert_rows, order.ends, order.padding};
}
Values gather_rows(const Values& a) {
  return {plain::gather_rows(a[0].toTensor(), row_order(a, 1), a[7].toTensor())};
}
Values sum_rows(const Values& a) {
  return {plain::sum_rows(a[0].toTensor(), a[1].toTensor(), a[2].toTensor(), a[3].toTensor(), a[4].toInt())};
}
template <hyperion::kernels::ProductsOfRows* kPlain>
Values of_rows(const Values& a) {
  return {kPlain(a[0].toTensor(), a[1].toTensor(), a[2].toTensor())};
}
Values weight_rows(const Values& a) {
  const auto rows = plain::weight_rows(a[0].toTensor(), a[1].toTensor(), row_order(a, 2), a[8].toTensor());
  return {rows.a, rows.b, rows.products};
}
Values sum_packed_rows(const Values& a) {
  return {plain::sum_packed_rows(a[0].toTensor(), a[1].toTensor(), a[2].toTensor(), a[3].toTensor(),
                                 a[4].toInt(), static_cast<at::ScalarType>(a[5].toInt()))};
}
Values vocab_statistics(const Values& a) {
  return {plain::vocab_statistics(a[0].toTensor(), a[1].toTensor(), {a[2].toInt(), a[3].toInt()})};
}
Values vocab_gradient(const Values& a) {
  plain::vocab_gradient(a[0].toTensor(), a[1].toTensor(), {a[2].toInt(), a[3].toInt()}, a[4].toTensor(),
                        a[5].toTensor(), a[6].toDouble());
  return {};
}

}  // namespace

const Substitute* substitute_for(const std::string& name, const std::string& overload) {
  static const std::map<std::string, Substitute> all = {
      {"aten::_scaled_dot_product_flash_attention", {flash, nullptr}},
      {"aten::_scaled_dot_product_flash_attention_backward", {flash_backward, nullptr}},
      {"aten::_scaled_dot_product_efficient_attention", {efficient, nullptr}},
      {"aten::_scaled_dot_product_efficient_attention_backward", {efficient_backward, nullptr}},
      {"aten::_flash_attention_forward", {flash_sequences, nullptr}},
      {"aten::_flash_attention_backward", {flash_sequences_backward, nullptr}},
      {"aten::_efficient_attention_forward", {efficient_sequences, nullptr}},
      {"aten::_efficient_attention_backward", {efficient_sequences_backward, nullptr}},
      {"aten::_scaled_dot_product_cudnn_attention", {cudnn, cudnn_results}},
      {"aten::_scaled_dot_product_cudnn_attention_backward", {cudnn_backward, cudnn_backward_results}},
      {"aten::_cudnn_attention_forward", {cudnn_sequences, cudnn_sequences_results}},
      {"aten::_fused_rms_norm_backward", {fused_rms_norm_backward, nullptr}},
      {"aten::_scaled_mm", {scaled_product, nullptr}},
      {"aten::_scaled_grouped_mm", {scaled_grouped_product, nullptr}},
      {"aten::mm.dtype", {wide_product, nullptr}},
      {"aten::addmm.dtype_out", {add_wide_product, nullptr}},
      {"hyperion::rope_heads", {rope_heads<plain::rope_heads>, nullptr}},
      {"hyperion::rope_heads_backward", {rope_heads<plain::rope_heads_backward>, nullptr}},
      {"hyperion::gated_activation", {gated_activation, nullptr}},
      {"hyperion::gated_activation_backward", {gated_activation_backward, nullptr}},
      {"hyperion::clamped_gate", {clamped_gate, nullptr}},
      {"hyperion::clamped_gate_backward", {clamped_gate_backward, nullptr}},
      {"hyperion::add_group_bias_", {add_group_bias, nullptr}},
      {"hyperion::sum_groups", {sum_groups, nullptr}},
      {"hyperion::add_rms_norm", {add_rms_norm, nullptr}},
      {"hyperion::add_rms_norm_backward", {add_rms_norm_backward, nullptr}},
      {"hyperion::latent_heads", {latent_heads, nullptr}},
      {"hyperion::latent_heads_backward", {latent_heads_backward, nullptr}},
      {"hyperion::pack_keys_", {pack_keys<plain::pack_keys>, nullptr}},
      {"hyperion::add_keys_", {pack_keys<plain::add_keys>, nullptr}},
      {"hyperion::unpack_keys_", {unpack_keys, nullptr}},
      {"hyperion::merge_parts_", {merge_parts, nullptr}},
      {"hyperion::route_tokens", {route_tokens, nullptr}},
      {"hyperion::routing_weights", {routing_weights, nullptr}},
      {"hyperion::routing_weights_backward", {routing_weights_backward, nullptr}},
      {"hyperion::order_rows", {order_rows, nullptr}},
      {"hyperion::gather_rows", {gather_rows, nullptr}},
      {"hyperion::sum_rows", {sum_rows, nullptr}},
      {"hyperion::products_of_rows", {of_rows<plain::products_of_rows>, nullptr}},
      {"hyperion::pack_row_sums", {of_rows<plain::pack_row_sums>, nullptr}},
      {"hyperion::sum_packed_rows", {sum_packed_rows, nullptr}},
      {"hyperion::weight_rows", {weight_rows, nullptr}},
      {"hyperion::cross_entropy_", {cross_entropy, nullptr}},
      {"hyperion::vocab_statistics", {vocab_statistics, nullptr}},
      {"hyperion::vocab_gradient_", {vocab_gradient, nullptr}},
  };
  const auto found = all.find(overload.starts_with("dtype") ? name + "." + overload : name);
  return found == all.end() ? rounded_state_update(name) : &found->second;
}

}  // namespace simulated_gpu
