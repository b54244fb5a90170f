// Scaled dot-product attention with grouped queries, and its backward, on the fastest backend for the device
// and dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace hyperion::kernels {

// What a forward leaves for its backward: the output, the log-sum-exp, and the backend's own extras.
struct AttentionResult {
  at::Tensor output;               // [batch, heads, seq, head_dim] in q's dtype
  std::vector<at::Tensor> extras;  // backend-specific
};

// q [batch, heads, seq, head_dim]; k, v [batch, kv_heads, seq, head_dim], heads a multiple of kv_heads; scale
// 1/sqrt(head_dim). Causal; `mask` (optional, bool [batch, 1, seq, seq], true = may attend) replaces the
// causal mask and must imply it.
AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const at::Tensor& mask);

// The kernel that serves a GPU tensor q [batch, heads, seq, head_dim]. cuDNN is the fastest on Hopper for
// half-precision causal attention up to head_dim 128, but builds a graph for every new length (prompts come
// in all lengths) and does not repeat its bits; Flash does where libtorch is asked for deterministic
// algorithms. The efficient kernels serve fp32, masks and every head_dim.
enum class AttentionKernel { kCudnn, kFlash, kEfficient };
AttentionKernel attention_kernel(const at::Tensor& q, bool masked);
// Whether attention_kernel() may choose cuDNN from now on, in the whole process (true at first); flash serves
// in its place. Not to be changed between a forward and its backward.
void allow_cudnn_attention(bool allowed);

struct AttentionGradients {
  at::Tensor q, k, v;
};
AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const at::Tensor& mask,
                                      const AttentionResult& result);

}  // namespace hyperion::kernels
