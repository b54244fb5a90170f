#include "models/kernels/attention.h"

#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <optional>

#include "models/kernels/matmul.h"

namespace hyperion::kernels {
namespace {

constexpr double kNoDropout = 0.0;

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

// The CPU's flash kernels run bf16 through the same slow products as matmul.h; widen under the same
// condition.
at::Tensor widened(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 && widens_bf16() ? t.to(at::kFloat) : t;
}

// cuDNN serves half-precision causal attention (the fastest on Hopper); the efficient kernels serve fp32 and
// masks.
bool use_cudnn(const at::Tensor& q, const at::Tensor& mask) {
  return !mask.defined() && q.scalar_type() != at::kFloat;
}

// [batch, kv_heads, seq, d] -> [batch, heads, seq, d], each head repeated in place.
at::Tensor repeat_heads(const at::Tensor& t, int64_t heads) {
  const int64_t times = heads / t.size(1);
  return times == 1 ? t : t.repeat_interleave(times, 1);
}

at::Tensor sum_heads(const at::Tensor& grad, int64_t kv_heads) {
  if (grad.size(1) == kv_heads) return grad;
  return grad.unflatten(1, {kv_heads, grad.size(1) / kv_heads}).sum(2);
}

at::Tensor additive(const at::Tensor& mask, at::ScalarType dtype) {
  if (!mask.defined()) return {};
  const auto options = at::TensorOptions(dtype).device(mask.device());
  return at::where(mask, at::zeros({}, options),
                   at::full({}, -std::numeric_limits<double>::infinity(), options));
}

AttentionResult cpu_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& mask) {
  const at::Tensor wide_q = widened(q);
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      wide_q, widened(k), widened(v), kNoDropout, !mask.defined(),
      optional(additive(mask, wide_q.scalar_type())));
  return {out.to(q.scalar_type()), {lse}};
}

AttentionGradients cpu_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                                const at::Tensor& v, const at::Tensor& mask, const AttentionResult& result) {
  const at::Tensor wide_q = widened(q);
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      widened(grad), wide_q, widened(k), widened(v), widened(result.output), result.extras.at(0), kNoDropout,
      !mask.defined(), optional(additive(mask, wide_q.scalar_type())));
  return {dq.to(q.scalar_type()), dk.to(q.scalar_type()), dv.to(q.scalar_type())};
}

AttentionResult cudnn_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  auto [out, lse, cum_q, cum_k, max_q, max_k, seed, offset, debug] = at::_scaled_dot_product_cudnn_attention(
      q, k, v, std::nullopt, /*compute_log_sumexp=*/true, kNoDropout, true);
  return {out, {lse, seed, offset}};
}

AttentionGradients cudnn_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                                  const at::Tensor& v, const AttentionResult& result) {
  auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      grad, q, k, v, result.output, result.extras.at(0), result.extras.at(1), result.extras.at(2), {}, {}, {},
      q.size(2), k.size(2), kNoDropout, true);
  return {dq, dk, dv};
}

AttentionResult efficient_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& mask) {
  auto [out, lse, seed, offset] = at::_scaled_dot_product_efficient_attention(
      q, repeat_heads(k, q.size(1)), repeat_heads(v, q.size(1)), optional(additive(mask, q.scalar_type())),
      /*compute_log_sumexp=*/true, kNoDropout, !mask.defined());
  return {out, {lse, seed, offset}};
}

AttentionGradients efficient_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const at::Tensor& mask,
                                      const AttentionResult& result) {
  auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
      grad, q, repeat_heads(k, q.size(1)), repeat_heads(v, q.size(1)), additive(mask, q.scalar_type()),
      result.output, result.extras.at(0), result.extras.at(1), result.extras.at(2), kNoDropout,
      {true, true, true, false}, !mask.defined());
  return {dq, sum_heads(dk, k.size(1)), sum_heads(dv, v.size(1))};
}

}  // namespace

AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& mask) {
  if (q.is_cpu()) return cpu_forward(q, k, v, mask);
  return use_cudnn(q, mask) ? cudnn_forward(q, k, v) : efficient_forward(q, k, v, mask);
}

AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const at::Tensor& mask,
                                      const AttentionResult& result) {
  if (q.is_cpu()) return cpu_backward(grad_output, q, k, v, mask, result);
  return use_cudnn(q, mask) ? cudnn_backward(grad_output, q, k, v, result)
                            : efficient_backward(grad_output, q, k, v, mask, result);
}

}  // namespace hyperion::kernels
