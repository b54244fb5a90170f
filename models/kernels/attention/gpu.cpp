#include "models/kernels/attention/gpu.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/constant_pad_nd.h>

#include "models/kernels/attention/heads.h"
#include "models/kernels/attention/merge.h"

namespace hyperion::kernels::gpu {
namespace {

constexpr double kNoDropout = 0.0;

// GPU kernels take head dimensions that are multiples of 8. Zeros at the end of each
// head change no product; the scale is that of the true dimension.
constexpr int64_t kAlignment = 8;

int64_t padded_width(int64_t width) {
  return (width + kAlignment - 1) / kAlignment * kAlignment;
}

struct CudaInput {
  CudaInput(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask,
            AttentionKernel kernel)
      : q(pad_heads(q, padded_width(q.size(3)))),
        k(pad_heads(k, this->q.size(3))),
        // Only cuDNN takes values of another width.
        v(pad_heads(v, kernel == AttentionKernel::kCudnn ? padded_width(v.size(3)) : this->q.size(3))),
        mask(mask),
        causal(mask.kind != MaskKind::kAllKeys),
        head_dim(q.size(3)),
        v_head_dim(v.size(3)),
        scale(1 / std::sqrt(static_cast<double>(q.size(3)))) {}

  at::Tensor q, k, v;
  const AttentionMask& mask;
  bool causal;  // from the last key
  int64_t head_dim, v_head_dim;
  double scale;
};

// [batch, heads, seq, d] -> [batch, seq, heads, d], and back
at::Tensor tokens_first(const at::Tensor& t) {
  return t.transpose(1, 2);
}

// [batch, heads, seq, d] -> [batch * seq, heads, d], and back: kernels for sequences of different lengths
// take these one behind the other.
at::Tensor all_tokens(const at::Tensor& t) {
  return t.transpose(1, 2).flatten(0, 1);
}
at::Tensor as_rows(const at::Tensor& t, const at::Tensor& q) {
  return t.unflatten(0, {q.size(0), q.size(2)}).transpose(1, 2);
}

AttentionResult cudnn_forward(const CudaInput& in) {
  auto [out, lse, cum_q, cum_k, max_q, max_k, seed, offset, debug] =
      at::_scaled_dot_product_cudnn_attention(in.q, in.k, in.v, std::nullopt, /*compute_log_sumexp=*/true,
                                              kNoDropout, in.causal, /*return_debug_mask=*/false, in.scale);
  return {out, lse.squeeze(-1), {seed, offset}};
}

AttentionGradients cudnn_backward(const at::Tensor& grad, const CudaInput& in,
                                  const AttentionResult& result) {
  auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      grad, in.q, in.k, in.v, result.output, result.lse.unsqueeze(-1), result.extras.at(0),
      result.extras.at(1), {}, {}, {}, in.q.size(2), in.k.size(2), kNoDropout, in.causal, in.scale);
  return {dq, dk, dv};
}

// The mask is causal from the last key.
AttentionResult flash_forward(const CudaInput& in) {
  auto [out, lse, cum_q, cum_k, max_q, max_k, seed, offset, debug] = at::_scaled_dot_product_flash_attention(
      in.q, in.k, in.v, kNoDropout, in.causal, /*return_debug_mask=*/false, in.scale);
  return {out, lse, {seed, offset}};
}

AttentionGradients flash_backward(const at::Tensor& grad, const CudaInput& in,
                                  const AttentionResult& result) {
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
      grad, in.q, in.k, in.v, result.output, result.lse, {}, {}, in.q.size(2), in.k.size(2), kNoDropout,
      in.causal, result.extras.at(0), result.extras.at(1), in.scale);
  return {dq, dk, dv};
}

// Flash counts how many keys a query sees before its last one.
std::optional<int64_t> keys_before(const AttentionMask& mask) {
  return mask.window > 0 ? std::optional(mask.window - 1) : std::nullopt;
}

std::optional<int64_t> right_of(const AttentionMask& mask) {
  return mask.window > 0 ? std::optional<int64_t>(0) : std::nullopt;
}

AttentionResult flash_window_forward(const CudaInput& in) {
  auto [out, lse, seed, offset, debug] = at::_flash_attention_forward(
      tokens_first(in.q), tokens_first(in.k), tokens_first(in.v), std::nullopt, std::nullopt, in.q.size(2),
      in.k.size(2), kNoDropout, true, /*return_debug_mask=*/false, in.scale, keys_before(in.mask), 0);
  return {tokens_first(out), lse, {seed, offset}};
}

AttentionGradients flash_window_backward(const at::Tensor& grad, const CudaInput& in,
                                         const AttentionResult& result) {
  auto [dq, dk, dv] = at::_flash_attention_backward(
      tokens_first(grad), tokens_first(in.q), tokens_first(in.k), tokens_first(in.v),
      tokens_first(result.output), result.lse, {}, {}, in.q.size(2), in.k.size(2), kNoDropout, true,
      result.extras.at(0), result.extras.at(1), in.scale, keys_before(in.mask), 0);
  return {tokens_first(dq), tokens_first(dk), tokens_first(dv)};
}

// libtorch takes a longest sequence of one query for decoding, where no sequence is without queries.
int64_t max_queries_for_flash(const AttentionMask& mask) {
  return std::max<int64_t>(mask.max_queries, 2);
}

AttentionResult flash_documents_forward(const CudaInput& in) {
  auto [out, lse, seed, offset, debug] = at::_flash_attention_forward(
      all_tokens(in.q), all_tokens(in.k), all_tokens(in.v), in.mask.query_bounds, in.mask.key_bounds,
      max_queries_for_flash(in.mask), in.mask.max_keys, kNoDropout, true, /*return_debug_mask=*/false,
      in.scale, keys_before(in.mask), right_of(in.mask));
  return {as_rows(out, in.q), lse.unflatten(1, {in.q.size(0), in.q.size(2)}).transpose(0, 1), {seed, offset}};
}

AttentionGradients flash_documents_backward(const at::Tensor& grad, const CudaInput& in,
                                            const AttentionResult& result) {
  auto [dq, dk, dv] = at::_flash_attention_backward(
      all_tokens(grad), all_tokens(in.q), all_tokens(in.k), all_tokens(in.v), all_tokens(result.output),
      result.lse.transpose(0, 1).flatten(1, 2), in.mask.query_bounds, in.mask.key_bounds,
      max_queries_for_flash(in.mask), in.mask.max_keys, kNoDropout, true, result.extras.at(0),
      result.extras.at(1), in.scale, keys_before(in.mask), right_of(in.mask));
  return {as_rows(dq, in.q), as_rows(dk, in.k), as_rows(dv, in.k)};
}

// The efficient kernels' log-sum-exp has rows of a multiple of 32.
constexpr int64_t kEfficientRows = 32;

at::Tensor padded_lse(const at::Tensor& lse) {
  const int64_t over = lse.size(2) % kEfficientRows;
  if (over == 0) return lse;
  return at::constant_pad_nd(lse, {0, kEfficientRows - over}, std::numeric_limits<double>::infinity());
}

AttentionResult efficient_forward(const CudaInput& in) {
  const int64_t heads = in.q.size(1);
  auto [out, lse, seed, offset] = at::_scaled_dot_product_efficient_attention(
      in.q, repeat_heads(in.k, heads), repeat_heads(in.v, heads), std::nullopt, /*compute_log_sumexp=*/true,
      kNoDropout, in.causal, in.scale);
  return {out, lse.narrow(2, 0, in.q.size(2)), {seed, offset}};
}

AttentionGradients efficient_backward(const at::Tensor& grad, const CudaInput& in,
                                      const AttentionResult& result) {
  const int64_t heads = in.q.size(1), kv_heads = in.k.size(1);
  auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
      grad, in.q, repeat_heads(in.k, heads), repeat_heads(in.v, heads), {}, result.output,
      padded_lse(result.lse), result.extras.at(0), result.extras.at(1), kNoDropout, {true, true, true, false},
      in.causal, in.scale);
  return {dq, sum_heads(dk, kv_heads), sum_heads(dv, kv_heads)};
}

constexpr int64_t kCausalFromTheLast = 2;  // libtorch's number of the mask

std::optional<int64_t> efficient_window(const AttentionMask& mask) {
  return mask.window > 0 ? std::optional(mask.window) : std::nullopt;
}

AttentionResult efficient_from_last_forward(const CudaInput& in) {
  const int64_t heads = in.q.size(1);
  auto [out, lse, seed, offset, most_q, most_k] = at::_efficient_attention_forward(
      tokens_first(in.q), tokens_first(repeat_heads(in.k, heads)), tokens_first(repeat_heads(in.v, heads)),
      std::nullopt, std::nullopt, std::nullopt, std::nullopt, std::nullopt, kNoDropout, kCausalFromTheLast,
      /*compute_log_sumexp=*/true, in.scale, {}, efficient_window(in.mask));
  return {tokens_first(out), lse.narrow(2, 0, in.q.size(2)), {seed, offset}};
}

AttentionGradients efficient_from_last_backward(const at::Tensor& grad, const CudaInput& in,
                                                const AttentionResult& result) {
  const int64_t heads = in.q.size(1), kv_heads = in.k.size(1);
  auto [dq, dk, dv, dbias] = at::_efficient_attention_backward(
      tokens_first(grad), tokens_first(in.q), tokens_first(repeat_heads(in.k, heads)),
      tokens_first(repeat_heads(in.v, heads)), std::nullopt, tokens_first(result.output), std::nullopt,
      std::nullopt, in.q.size(2), in.k.size(2), padded_lse(result.lse), kNoDropout, result.extras.at(0),
      result.extras.at(1), kCausalFromTheLast, /*bias_requires_grad=*/false, in.scale,
      /*num_splits_key=*/std::nullopt, efficient_window(in.mask));
  return {tokens_first(dq), sum_heads(tokens_first(dk), kv_heads), sum_heads(tokens_first(dv), kv_heads)};
}

AttentionResult efficient_documents_forward(const CudaInput& in) {
  const int64_t heads = in.q.size(1);
  const auto one_row = [](const at::Tensor& t) { return all_tokens(t).unsqueeze(0); };
  auto [out, lse, seed, offset, longest_q, longest_k] = at::_efficient_attention_forward(
      one_row(in.q), one_row(repeat_heads(in.k, heads)), one_row(repeat_heads(in.v, heads)), std::nullopt,
      in.mask.query_bounds, in.mask.key_bounds, in.mask.max_queries, in.mask.max_keys, kNoDropout,
      kCausalFromTheLast, /*compute_log_sumexp=*/true, in.scale, {}, efficient_window(in.mask));
  return {as_rows(out.squeeze(0), in.q), {}, {seed, offset, lse}};
}

AttentionGradients efficient_documents_backward(const at::Tensor& grad, const CudaInput& in,
                                                const AttentionResult& result) {
  const int64_t heads = in.q.size(1), kv_heads = in.k.size(1);
  const auto one_row = [](const at::Tensor& t) { return all_tokens(t).unsqueeze(0); };
  auto [dq, dk, dv, dbias] = at::_efficient_attention_backward(
      one_row(grad), one_row(in.q), one_row(repeat_heads(in.k, heads)), one_row(repeat_heads(in.v, heads)),
      std::nullopt, one_row(result.output), in.mask.query_bounds, in.mask.key_bounds, in.mask.max_queries,
      in.mask.max_keys, result.extras.at(2), kNoDropout, result.extras.at(0), result.extras.at(1),
      kCausalFromTheLast, /*bias_requires_grad=*/false, in.scale, /*num_splits_key=*/std::nullopt,
      efficient_window(in.mask));
  const auto rows = [](const at::Tensor& t, const at::Tensor& like) { return as_rows(t.squeeze(0), like); };
  return {rows(dq, in.q), sum_heads(rows(dk, in.k), kv_heads), sum_heads(rows(dv, in.k), kv_heads)};
}

struct CudaForm {
  AttentionResult (*forward)(const CudaInput& in);
  AttentionGradients (*backward)(const at::Tensor& grad, const CudaInput& in, const AttentionResult& result);
};

CudaForm cuda_form(AttentionKernel kernel, const CudaInput& in) {
  const bool documents = in.mask.has_documents();
  if (kernel == AttentionKernel::kCudnn) return {cudnn_forward, cudnn_backward};
  const bool windowed = in.mask.window > 0;
  if (kernel == AttentionKernel::kFlash && documents)
    return {flash_documents_forward, flash_documents_backward};
  if (kernel == AttentionKernel::kFlash)
    return windowed ? CudaForm{flash_window_forward, flash_window_backward}
                    : CudaForm{flash_forward, flash_backward};
  if (documents) return {efficient_documents_forward, efficient_documents_backward};
  // the other entry is causal from the first key, and takes no window
  if (windowed || (in.causal && in.q.size(2) != in.k.size(2)))
    return {efficient_from_last_forward, efficient_from_last_backward};
  return {efficient_forward, efficient_backward};
}

// cuDNN's causal mask begins with the first key.
bool in_two_calls(AttentionKernel kernel, const at::Tensor& q, const at::Tensor& k,
                  const AttentionMask& mask) {
  return kernel == AttentionKernel::kCudnn && mask.kind == MaskKind::kCausal && k.size(2) > q.size(2);
}

}  // namespace

AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionMask& mask, AttentionKernel kernel) {
  if (in_two_calls(kernel, q, k, mask)) return causal_attention_in_two_calls(q, k, v);
  const CudaInput in(q, k, v, mask, kernel);
  AttentionResult result = cuda_form(kernel, in).forward(in);
  result.output = result.output.narrow(3, 0, in.v_head_dim);
  return result;
}

AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const AttentionMask& mask,
                                      const AttentionResult& result, AttentionKernel kernel) {
  if (in_two_calls(kernel, q, k, mask))
    return causal_attention_in_two_calls_backward(grad_output, q, k, v, result);
  const CudaInput in(q, k, v, mask, kernel);
  const int64_t width = in.v.size(3);
  const AttentionResult padded = {pad_heads(result.output, width), result.lse, result.extras};
  const AttentionGradients grads = cuda_form(kernel, in).backward(pad_heads(grad_output, width), in, padded);
  return {grads.q.narrow(3, 0, in.head_dim), grads.k.narrow(3, 0, in.head_dim),
          grads.v.narrow(3, 0, in.v_head_dim)};
}

}  // namespace hyperion::kernels::gpu
