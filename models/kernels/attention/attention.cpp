#include "models/kernels/attention/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
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
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>

#include "base/log.h"
#include "models/kernels/attention/cpu.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/matmul/matmul.h"

namespace hyperion::kernels {
namespace {

constexpr double kNoDropout = 0.0;

// [batch, kv_heads, seq, d] -> [batch, heads, seq, d], each head repeated in place.
at::Tensor repeat_heads(const at::Tensor& t, int64_t heads) {
  const int64_t times = heads / t.size(1);
  return times == 1 ? t : t.repeat_interleave(times, 1);
}

at::Tensor sum_heads(const at::Tensor& grad, int64_t kv_heads) {
  if (grad.size(1) == kv_heads) return grad;
  return grad.unflatten(1, {kv_heads, grad.size(1) / kv_heads}).sum(2);
}

// GPU kernels take head dimensions that are multiples of 8. Zeros at the end of each
// head change no product; the scale is that of the true dimension.
constexpr int64_t kAlignment = 8;

at::Tensor pad_last_dim(const at::Tensor& t) {
  const int64_t over = t.size(-1) % kAlignment;
  return over == 0 ? t : at::constant_pad_nd(t, {0, kAlignment - over});
}

struct CudaInput {
  CudaInput(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Documents& documents)
      : q(pad_last_dim(q)),
        k(pad_last_dim(k)),
        v(pad_last_dim(v)),
        documents(documents),
        head_dim(q.size(3)),
        scale(1 / std::sqrt(static_cast<double>(q.size(3)))) {}

  at::Tensor q, k, v;
  const Documents& documents;
  int64_t head_dim;
  double scale;
};

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

AttentionResult flash_documents_forward(const CudaInput& in) {
  const Documents& documents = in.documents;
  auto [out, lse, seed, offset, debug] = at::_flash_attention_forward(
      all_tokens(in.q), all_tokens(in.k), all_tokens(in.v), documents.bounds, documents.bounds,
      documents.longest, documents.longest, kNoDropout, true, /*return_debug_mask=*/false, in.scale);
  return {as_rows(out, in.q), {lse, seed, offset}};
}

AttentionGradients flash_documents_backward(const at::Tensor& grad, const CudaInput& in,
                                            const AttentionResult& result) {
  const Documents& documents = in.documents;
  auto [dq, dk, dv] = at::_flash_attention_backward(
      all_tokens(grad), all_tokens(in.q), all_tokens(in.k), all_tokens(in.v), all_tokens(result.output),
      result.extras.at(0), documents.bounds, documents.bounds, documents.longest, documents.longest,
      kNoDropout, true, result.extras.at(1), result.extras.at(2), in.scale);
  return {as_rows(dq, in.q), as_rows(dk, in.q), as_rows(dv, in.q)};
}

AttentionResult efficient_forward(const CudaInput& in) {
  const int64_t heads = in.q.size(1);
  auto [out, lse, seed, offset] = at::_scaled_dot_product_efficient_attention(
      in.q, repeat_heads(in.k, heads), repeat_heads(in.v, heads), std::nullopt, /*compute_log_sumexp=*/true,
      kNoDropout, true, in.scale);
  return {out, {lse, seed, offset}};
}

AttentionGradients efficient_backward(const at::Tensor& grad, const CudaInput& in,
                                      const AttentionResult& result) {
  const int64_t heads = in.q.size(1), kv_heads = in.k.size(1);
  auto [dq, dk, dv, dbias] = at::_scaled_dot_product_efficient_attention_backward(
      grad, in.q, repeat_heads(in.k, heads), repeat_heads(in.v, heads), {}, result.output,
      result.extras.at(0), result.extras.at(1), result.extras.at(2), kNoDropout, {true, true, true, false},
      true, in.scale);
  return {dq, sum_heads(dk, kv_heads), sum_heads(dv, kv_heads)};
}

constexpr int64_t kCausalFromTheFirst = 1;  // libtorch's number of the mask

AttentionResult efficient_documents_forward(const CudaInput& in) {
  const int64_t heads = in.q.size(1);
  const Documents& documents = in.documents;
  const auto one_row = [](const at::Tensor& t) { return all_tokens(t).unsqueeze(0); };
  auto [out, lse, seed, offset, longest_q, longest_k] = at::_efficient_attention_forward(
      one_row(in.q), one_row(repeat_heads(in.k, heads)), one_row(repeat_heads(in.v, heads)), std::nullopt,
      documents.bounds, documents.bounds, documents.longest, documents.longest, kNoDropout,
      kCausalFromTheFirst,
      /*compute_log_sumexp=*/true, in.scale);
  return {as_rows(out.squeeze(0), in.q), {lse, seed, offset}};
}

AttentionGradients efficient_documents_backward(const at::Tensor& grad, const CudaInput& in,
                                                const AttentionResult& result) {
  const int64_t heads = in.q.size(1), kv_heads = in.k.size(1);
  const Documents& documents = in.documents;
  const auto one_row = [](const at::Tensor& t) { return all_tokens(t).unsqueeze(0); };
  auto [dq, dk, dv, dbias] = at::_efficient_attention_backward(
      one_row(grad), one_row(in.q), one_row(repeat_heads(in.k, heads)), one_row(repeat_heads(in.v, heads)),
      std::nullopt, one_row(result.output), documents.bounds, documents.bounds, documents.longest,
      documents.longest, result.extras.at(0), kNoDropout, result.extras.at(1), result.extras.at(2),
      kCausalFromTheFirst, /*bias_requires_grad=*/false, in.scale);
  const auto rows = [&](const at::Tensor& t) { return as_rows(t.squeeze(0), in.q); };
  return {rows(dq), sum_heads(rows(dk), kv_heads), sum_heads(rows(dv), kv_heads)};
}

struct CudaForm {
  AttentionResult (*forward)(const CudaInput& in);
  AttentionGradients (*backward)(const at::Tensor& grad, const CudaInput& in, const AttentionResult& result);
};

CudaForm cuda_form(const CudaInput& in) {
  const bool documents = in.documents.defined();
  switch (attention_kernel(in.q, documents)) {
    case AttentionKernel::kCudnn:
      return {cudnn_forward, cudnn_backward};
    case AttentionKernel::kFlash:
      if (documents) return {flash_documents_forward, flash_documents_backward};
      return {flash_forward, flash_backward};
    case AttentionKernel::kEfficient:
      if (documents) return {efficient_documents_forward, efficient_documents_backward};
  }
  return {efficient_forward, efficient_backward};
}

AttentionResult cuda_forward(const CudaInput& in) {
  AttentionResult result = cuda_form(in).forward(in);
  result.output = result.output.narrow(3, 0, in.head_dim);
  return result;
}

AttentionGradients cuda_backward(const at::Tensor& grad, const CudaInput& in, AttentionResult result) {
  result.output = pad_last_dim(result.output);
  AttentionGradients grads = cuda_form(in).backward(pad_last_dim(grad), in, result);
  for (at::Tensor* t : {&grads.q, &grads.k, &grads.v}) *t = t->narrow(3, 0, in.head_dim);
  return grads;
}

std::atomic<bool> cudnn_allowed{true}, libtorch_on_cpu{false};

bool libtorch_serves(const at::Tensor& q, const Documents& documents) {
  return libtorch_on_cpu && is_fused_dtype(q) && !documents.defined();
}

// libtorch runs bf16 through the same slow products as matmul.h: it is widened to fp32 under the same
// condition.
at::Tensor to_product_dtype(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 && widens_bf16() ? t.to(at::kFloat) : t;
}

AttentionResult libtorch_cpu_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      to_product_dtype(q), to_product_dtype(k), to_product_dtype(v), kNoDropout, /*is_causal=*/true);
  return {out.to(q.scalar_type()), {lse}};
}

AttentionGradients libtorch_cpu_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const AttentionResult& result) {
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      to_product_dtype(grad), to_product_dtype(q), to_product_dtype(k), to_product_dtype(v),
      to_product_dtype(result.output), result.extras.at(0), kNoDropout, /*is_causal=*/true);
  return {dq.to(q.scalar_type()), dk.to(q.scalar_type()), dv.to(q.scalar_type())};
}

void log_plain_attention(const at::Tensor& q) {
  static std::atomic<bool> logged{false};
  if (!logged.exchange(true))
    log_info(
        "Attention: plain operations, which are slow and hold all scores; the kernels for CPUs take float32 "
        "and "
        "bfloat16 and heads of up to 256, this is {} and {}",
        c10::toString(q.scalar_type()), q.size(3));
}

// bool [batch or 1, 1, seq, seq]: whether a query (row) may attend to a key (column).
at::Tensor allowed(int64_t seq, const Documents& documents) {
  const at::Tensor keys = at::arange(seq, at::kInt), queries = keys.unsqueeze(1);
  const at::Tensor causal = keys.le(queries);
  if (!documents.defined()) return causal.unsqueeze(0).unsqueeze(0);
  return keys.ge(documents.first_keys.unsqueeze(2)).logical_and_(causal).unsqueeze(1);
}

struct PlainInput {
  PlainInput(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Documents& documents)
      : q(q.to(opmath_dtype(q))),
        k(repeat_heads(k.to(opmath_dtype(q)), q.size(1))),
        v(repeat_heads(v.to(opmath_dtype(q)), q.size(1))),
        scale(1 / std::sqrt(static_cast<double>(q.size(3)))),
        scores(at::matmul(this->q, this->k.transpose(2, 3))
                   .mul_(scale)
                   .masked_fill_(allowed(q.size(2), documents).logical_not_(),
                                 -std::numeric_limits<double>::infinity())) {}

  at::Tensor q, k, v;
  double scale;
  at::Tensor scores;  // [batch, heads, seq, seq]
};

}  // namespace

void allow_cudnn_attention(bool allowed) {
  cudnn_allowed = allowed;
}

void use_libtorch_attention_on_cpu(bool used) {
  libtorch_on_cpu = used;
}

AttentionKernel attention_kernel(const at::Tensor& q, bool documents) {
  constexpr int64_t kCudnnHeadDim = 128, kFlashHeadDim = 256, kCommonLength = 64;
  if (q.scalar_type() == at::kFloat || q.size(3) > kFlashHeadDim) return AttentionKernel::kEfficient;
  if (documents || q.size(3) > kCudnnHeadDim || q.size(2) % kCommonLength != 0 ||
      at::globalContext().deterministicAlgorithms() || !cudnn_allowed)
    return AttentionKernel::kFlash;
  return AttentionKernel::kCudnn;
}

Documents documents_from(const at::Tensor& positions, at::Device device) {
  const int64_t rows = positions.size(0), seq = positions.size(1);
  const auto options = at::TensorOptions(at::kInt);
  const int32_t* position = positions.const_data_ptr<int32_t>();
  Documents documents;
  if (device.is_cpu()) {
    documents.first_keys = at::arange(seq, options) - positions;
    return documents;
  }
  std::vector<int32_t> bounds;
  for (int64_t i = 0; i < rows * seq; ++i)
    if (position[i] == 0) bounds.push_back(static_cast<int32_t>(i));
  bounds.push_back(static_cast<int32_t>(rows * seq));
  for (size_t i = 1; i < bounds.size(); ++i)
    documents.longest = std::max<int64_t>(documents.longest, bounds[i] - bounds[i - 1]);
  const at::Tensor on_host = at::empty({static_cast<int64_t>(bounds.size())}, options.pinned_memory(true));
  std::ranges::copy(bounds, on_host.mutable_data_ptr<int32_t>());
  documents.bounds = on_host.to(device, /*non_blocking=*/true);
  return documents;
}

AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const Documents& documents) {
  if (!q.is_cpu()) return cuda_forward({q, k, v, documents});
  if (libtorch_serves(q, documents)) return libtorch_cpu_forward(q, k, v);
  if (cpu::takes_attention(q))
    return cpu::attention_forward(q, k, v, documents.first_keys, cpu::chosen_instructions());
  log_plain_attention(q);
  return plain::attention_forward(q, k, v, documents);
}

AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const Documents& documents,
                                      const AttentionResult& result) {
  if (!q.is_cpu()) return cuda_backward(grad_output, {q, k, v, documents}, result);
  if (libtorch_serves(q, documents)) return libtorch_cpu_backward(grad_output, q, k, v, result);
  return cpu::takes_attention(q) ? cpu::attention_backward(grad_output, q, k, v, documents.first_keys, result,
                                                           cpu::chosen_instructions())
                                 : plain::attention_backward(grad_output, q, k, v, documents, result);
}

namespace plain {

AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const Documents& documents) {
  const PlainInput in(q, k, v, documents);
  const at::Tensor lse = at::logsumexp(in.scores, {-1});
  const at::Tensor weights = (in.scores - lse.unsqueeze(-1)).exp_();
  return {at::matmul(weights, in.v).to(q.scalar_type()), {lse}};
}

AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const Documents& documents,
                                      const AttentionResult& result) {
  const PlainInput in(q, k, v, documents);
  const at::Tensor grad = grad_output.to(opmath_dtype(q));
  const at::Tensor weights = (in.scores - result.extras.at(0).unsqueeze(-1)).exp_();
  const at::Tensor grad_weights = at::matmul(grad, in.v.transpose(2, 3));
  const at::Tensor mean = (weights * grad_weights).sum(-1, /*keepdim=*/true);
  const at::Tensor grad_scores = (grad_weights - mean).mul_(weights).mul_(in.scale);
  const int64_t kv_heads = k.size(1);
  return {at::matmul(grad_scores, in.k).to(q.scalar_type()),
          sum_heads(at::matmul(grad_scores.transpose(2, 3), in.q), kv_heads).to(k.scalar_type()),
          sum_heads(at::matmul(weights.transpose(2, 3), grad), kv_heads).to(v.scalar_type())};
}

}  // namespace plain
}  // namespace hyperion::kernels
