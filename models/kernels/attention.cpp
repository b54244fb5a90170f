#include "models/kernels/attention.h"

#include <ATen/Context.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <optional>

#include "models/kernels/matmul.h"

namespace hyperion::kernels {
namespace {

constexpr double kNoDropout = 0.0;

std::optional<at::Tensor> as_optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

// The CPU's flash kernels run bf16 through the same slow products as matmul.h: bf16 is widened to fp32 under
// the same condition.
at::Tensor to_product_dtype(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 && widens_bf16() ? t.to(at::kFloat) : t;
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

// 0 where `mask` is true, else -infinity.
at::Tensor additive_mask(const at::Tensor& mask, at::ScalarType dtype) {
  if (!mask.defined()) return {};
  const auto options = at::TensorOptions(dtype).device(mask.device());
  return at::where(mask, at::zeros({}, options),
                   at::full({}, -std::numeric_limits<double>::infinity(), options));
}

AttentionResult cpu_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& mask) {
  const at::Tensor wide_q = to_product_dtype(q);
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      wide_q, to_product_dtype(k), to_product_dtype(v), kNoDropout, !mask.defined(),
      as_optional(additive_mask(mask, wide_q.scalar_type())));
  return {out.to(q.scalar_type()), {lse}};
}

AttentionGradients cpu_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                                const at::Tensor& v, const at::Tensor& mask, const AttentionResult& result) {
  const at::Tensor wide_q = to_product_dtype(q);
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      to_product_dtype(grad), wide_q, to_product_dtype(k), to_product_dtype(v),
      to_product_dtype(result.output), result.extras.at(0), kNoDropout, !mask.defined(),
      as_optional(additive_mask(mask, wide_q.scalar_type())));
  return {dq.to(q.scalar_type()), dk.to(q.scalar_type()), dv.to(q.scalar_type())};
}

// GPU kernels take head dimensions (and rows of a bias) that are multiples of 8. Zeros at the end of each
// head change no product; the scale is that of the true dimension.
constexpr int64_t kAlignment = 8;

at::Tensor pad_last_dim(const at::Tensor& t) {
  const int64_t over = t.size(-1) % kAlignment;
  return over == 0 ? t : at::constant_pad_nd(t, {0, kAlignment - over});
}

struct CudaInput {
  CudaInput(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask)
      : q(pad_last_dim(q)),
        k(pad_last_dim(k)),
        v(pad_last_dim(v)),
        mask(mask),
        head_dim(q.size(3)),
        scale(1 / std::sqrt(static_cast<double>(q.size(3)))) {}

  // 0 where q may attend, else -infinity: [batch, heads, seq, seq], one copy for all heads.
  at::Tensor bias() const {
    if (!mask.defined()) return {};
    const at::Tensor rows = pad_last_dim(additive_mask(mask, q.scalar_type())).narrow(3, 0, mask.size(3));
    return rows.expand({q.size(0), q.size(1), q.size(2), k.size(2)});
  }

  at::Tensor q, k, v, mask;
  int64_t head_dim;
  double scale;
};

AttentionResult cudnn_forward(const CudaInput& in) {
  auto [out, lse, cum_q, cum_k, max_q, max_k, seed, offset, debug] =
      at::_scaled_dot_product_cudnn_attention(in.q, in.k, in.v, std::nullopt, /*compute_log_sumexp=*/true,
                                              kNoDropout, true, /*return_debug_mask=*/false, in.scale);
  return {out, {lse, seed, offset}};
}

AttentionGradients cudnn_backward(const at::Tensor& grad, const CudaInput& in,
                                  const AttentionResult& result) {
  auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      grad, in.q, in.k, in.v, result.output, result.extras.at(0), result.extras.at(1), result.extras.at(2),
      {}, {}, {}, in.q.size(2), in.k.size(2), kNoDropout, true, in.scale);
  return {dq, dk, dv};
}

AttentionResult flash_forward(const CudaInput& in) {
  auto [out, lse, cum_q, cum_k, max_q, max_k, seed, offset, debug] = at::_scaled_dot_product_flash_attention(
      in.q, in.k, in.v, kNoDropout, true, /*return_debug_mask=*/false, in.scale);
  return {out, {lse, seed, offset}};
}

AttentionGradients flash_backward(const at::Tensor& grad, const CudaInput& in,
                                  const AttentionResult& result) {
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
      grad, in.q, in.k, in.v, result.output, result.extras.at(0), {}, {}, in.q.size(2), in.k.size(2),
      kNoDropout, true, result.extras.at(1), result.extras.at(2), in.scale);
  return {dq, dk, dv};
}

AttentionResult efficient_forward(const CudaInput& in) {
  const int64_t heads = in.q.size(1);
  auto [out, lse, seed, offset] = at::_scaled_dot_product_efficient_attention(
      in.q, repeat_heads(in.k, heads), repeat_heads(in.v, heads), as_optional(in.bias()),
      /*compute_log_sumexp=*/true, kNoDropout, !in.mask.defined(), in.scale);
  return {out, {lse, seed, offset}};
}

AttentionGradients efficient_backward(const at::Tensor& grad, const CudaInput& in,
                                      const AttentionResult& result) {
  const int64_t heads = in.q.size(1), kv_heads = in.k.size(1);
  auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
      grad, in.q, repeat_heads(in.k, heads), repeat_heads(in.v, heads), in.bias(), result.output,
      result.extras.at(0), result.extras.at(1), result.extras.at(2), kNoDropout, {true, true, true, false},
      !in.mask.defined(), in.scale);
  return {dq, sum_heads(dk, kv_heads), sum_heads(dv, kv_heads)};
}

AttentionResult cuda_forward(const CudaInput& in) {
  AttentionResult result;
  switch (attention_kernel(in.q, in.mask.defined())) {
    case AttentionKernel::kCudnn:
      result = cudnn_forward(in);
      break;
    case AttentionKernel::kFlash:
      result = flash_forward(in);
      break;
    case AttentionKernel::kEfficient:
      result = efficient_forward(in);
  }
  result.output = result.output.narrow(3, 0, in.head_dim);
  return result;
}

AttentionGradients cuda_backward(const at::Tensor& grad, const CudaInput& in, AttentionResult result) {
  result.output = pad_last_dim(result.output);
  AttentionGradients grads;
  switch (attention_kernel(in.q, in.mask.defined())) {
    case AttentionKernel::kCudnn:
      grads = cudnn_backward(pad_last_dim(grad), in, result);
      break;
    case AttentionKernel::kFlash:
      grads = flash_backward(pad_last_dim(grad), in, result);
      break;
    case AttentionKernel::kEfficient:
      grads = efficient_backward(pad_last_dim(grad), in, result);
  }
  for (at::Tensor* t : {&grads.q, &grads.k, &grads.v}) *t = t->narrow(3, 0, in.head_dim);
  return grads;
}

std::atomic<bool> cudnn_allowed{true};

}  // namespace

void allow_cudnn_attention(bool allowed) {
  cudnn_allowed = allowed;
}

AttentionKernel attention_kernel(const at::Tensor& q, bool masked) {
  constexpr int64_t kCudnnHeadDim = 128, kFlashHeadDim = 256, kCommonLength = 64;
  if (masked || q.scalar_type() == at::kFloat || q.size(3) > kFlashHeadDim)
    return AttentionKernel::kEfficient;
  if (q.size(3) > kCudnnHeadDim || q.size(2) % kCommonLength != 0 ||
      at::globalContext().deterministicAlgorithms() || !cudnn_allowed)
    return AttentionKernel::kFlash;
  return AttentionKernel::kCudnn;
}

AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& mask) {
  return q.is_cpu() ? cpu_forward(q, k, v, mask) : cuda_forward({q, k, v, mask});
}

AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const at::Tensor& mask,
                                      const AttentionResult& result) {
  return q.is_cpu() ? cpu_backward(grad_output, q, k, v, mask, result)
                    : cuda_backward(grad_output, {q, k, v, mask}, result);
}

}  // namespace hyperion::kernels
