#include "models/kernels/attention/attention.h"

#include <atomic>

#include <ATen/Context.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include "base/error.h"
#include "base/log.h"
#include "models/args/attention_heads.h"
#include "models/kernels/attention/cpu.h"
#include "models/kernels/attention/gpu.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/matmul/matmul.h"

namespace hyperion::kernels {
namespace {

constexpr double kNoDropout = 0.0;

std::atomic<bool> cudnn_allowed{true}, libtorch_on_cpu{false};

bool is_causal(const AttentionMask& mask) {
  return mask.kind != MaskKind::kAllKeys;
}

// libtorch runs bf16 through the same slow products as matmul.h: it is widened to fp32 under the same
// condition.
at::Tensor to_product_dtype(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 && widens_bf16() ? t.to(at::kFloat) : t;
}

AttentionResult libtorch_cpu_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     const AttentionMask& mask) {
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      to_product_dtype(q), to_product_dtype(k), to_product_dtype(v), kNoDropout, is_causal(mask));
  return {out.to(q.scalar_type()), lse, {}};
}

AttentionGradients libtorch_cpu_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const AttentionResult& result,
                                         const AttentionMask& mask) {
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      to_product_dtype(grad), to_product_dtype(q), to_product_dtype(k), to_product_dtype(v),
      to_product_dtype(result.output), result.lse, kNoDropout, is_causal(mask));
  return {dq.to(q.scalar_type()), dk.to(q.scalar_type()), dv.to(q.scalar_type())};
}

void log_plain_attention(const at::Tensor& q) {
  static std::atomic<bool> logged{false};
  if (!logged.exchange(true))
    log_info(
        "Attention: plain operations, which are slow and hold all scores; the kernels for CPUs take float32 "
        "and bfloat16 and heads of up to 256, this is {} and {}",
        c10::toString(q.scalar_type()), q.size(3));
}

void require_keys_for_each_query(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  if (mask.window < 0 || (mask.window > 0 && !is_causal(mask)))
    throw_bug("attention with a window of {} that is {}", mask.window,
              is_causal(mask) ? "causal" : "to all keys");
  if (is_causal(mask) && k.size(2) < q.size(2))
    throw_bug("attention of {} queries from the last of {} keys: the first queries would have no key",
              q.size(2), k.size(2));
}

AttentionKernel kernel_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionMask& mask) {
  require_keys_for_each_query(q, k, mask);
  return attention_kernel({.dtype = q.scalar_type(),
                           .head_dim = q.size(3),
                           .v_head_dim = v.size(3),
                           .queries = q.size(2),
                           .keys = k.size(2),
                           .mask = mask.kind,
                           .window = mask.window},
                          q.device());
}

}  // namespace

void allow_cudnn_attention(bool allowed) {
  cudnn_allowed = allowed;
}

void use_libtorch_attention_on_cpu(bool used) {
  libtorch_on_cpu = used;
}

bool serves(AttentionKernel kernel, const AttentionCall& call) {
  const bool fp32 = call.dtype == at::kFloat, one_width = call.v_head_dim == call.head_dim;
  const auto divides = [](int64_t length) { return length % gpu::kCudnnLength == 0; };
  // The causal mask of libtorch's kernel for CPUs begins with the first key.
  const bool from_first =
      call.mask == MaskKind::kAllKeys || (call.mask == MaskKind::kCausal && call.queries == call.keys);
  const bool windowed = call.window > 0;
  switch (kernel) {
    case AttentionKernel::kLibtorchCpu:
      return is_fused_dtype(call.dtype) && one_width && from_first && !windowed;
    case AttentionKernel::kCpu:
      return is_fused_dtype(call.dtype) && one_width && call.head_dim <= cpu::kLargestHead;
    case AttentionKernel::kCudnn:
      return !fp32 && call.mask != MaskKind::kDocuments && !windowed && divides(call.queries) &&
             divides(call.keys) &&
             (one_width
                  ? call.head_dim <= gpu::kLargestCudnnHead
                  : call.head_dim == gpu::kCudnnLatentHead && call.v_head_dim == gpu::kLargestCudnnHead);
    case AttentionKernel::kFlash:
      return !fp32 && call.head_dim <= gpu::kLargestFlashHead;
    case AttentionKernel::kEfficient:
      return !windowed || call.queries == call.keys;
    case AttentionKernel::kPlain:
      return true;
  }
  return false;
}

AttentionKernel attention_kernel(const AttentionCall& call, at::Device device) {
  using enum AttentionKernel;
  if (device.is_cpu()) {
    if (libtorch_on_cpu && serves(kLibtorchCpu, call)) return kLibtorchCpu;
    return serves(kCpu, call) ? kCpu : kPlain;
  }
  const bool cudnn = cudnn_allowed && !at::globalContext().deterministicAlgorithms();
  if (cudnn && serves(kCudnn, call)) return kCudnn;
  if (serves(kFlash, call)) return kFlash;
  if (!serves(kEfficient, call))
    throw_config(
        "attention with a window of {} to more keys ({}) than queries ({}), as context parallelism needs it, "
        "has a GPU kernel for bfloat16 and heads of up to {} only; this is {} with heads of {}",
        call.window, call.keys, call.queries, gpu::kLargestFlashHead, c10::toString(call.dtype),
        call.head_dim);
  return kEfficient;
}

int64_t value_width(const AttentionCall& call, at::Device device) {
  return attention_kernel(call, device) == AttentionKernel::kCudnn ? call.v_head_dim : call.head_dim;
}

AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionMask& mask) {
  switch (const AttentionKernel kernel = kernel_of(q, k, v, mask)) {
    case AttentionKernel::kLibtorchCpu:
      return libtorch_cpu_forward(q, k, v, mask);
    case AttentionKernel::kCpu:
      return cpu::attention_forward(q, k, v, mask, cpu::chosen_instructions());
    case AttentionKernel::kPlain:
      log_plain_attention(q);
      return plain::attention_forward(q, k, v, mask);
    default:
      return gpu::attention_forward(q, k, v, mask, kernel);
  }
}

AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const AttentionMask& mask,
                                      const AttentionResult& result) {
  switch (const AttentionKernel kernel = kernel_of(q, k, v, mask)) {
    case AttentionKernel::kLibtorchCpu:
      return libtorch_cpu_backward(grad_output, q, k, v, result, mask);
    case AttentionKernel::kCpu:
      return cpu::attention_backward(grad_output, q, k, v, mask, result, cpu::chosen_instructions());
    case AttentionKernel::kPlain:
      return plain::attention_backward(grad_output, q, k, v, mask, result);
    default:
      return gpu::attention_backward(grad_output, q, k, v, mask, result, kernel);
  }
}

}  // namespace hyperion::kernels
