// Scaled dot-product attention with grouped queries, and its backward, on the fastest backend for the device
// and dtype.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace hyperion::kernels {

// What a forward leaves for its backward: the output, the log-sum-exp, and the backend's own extras.
struct AttentionResult {
  at::Tensor output;               // [batch, heads, seq, head_dim] in q's dtype
  std::vector<at::Tensor> extras;  // backend-specific
};

// The documents that are packed into the rows of a batch, each of which attention stays inside; none: a row
// is one.
struct Documents {
  // On a CPU: int32 [batch, seq], the first token in its row of each token's document.
  at::Tensor first_keys;
  // On a GPU: int32 [documents + 1], where each begins, counted over all rows, and the number of tokens.
  at::Tensor bounds;
  int64_t longest = 0;  // tokens of the longest

  bool defined() const { return first_keys.defined() || bounds.defined(); }
};
// positions: int32 [batch, seq] on the CPU, counted inside each document; each row begins with 0. On a GPU
// the result is copied without waiting for it.
Documents documents_from(const at::Tensor& positions, at::Device device);

// q [batch, heads, seq, head_dim]; k, v [batch, kv_heads, seq, head_dim], heads a multiple of kv_heads; scale
// 1/sqrt(head_dim). Causal, inside `documents`, which are those of q's device.
AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const Documents& documents);

// The kernel that serves a GPU tensor q [batch, heads, seq, head_dim]. cuDNN is the fastest on Hopper for
// half-precision causal attention up to head_dim 128, but builds a graph for every new length (prompts come
// in all lengths) and does not repeat its bits; Flash does where libtorch is asked for deterministic
// algorithms, and takes documents as sequences of different lengths. The efficient kernels do the latter too,
// and serve fp32 and every head_dim.
enum class AttentionKernel { kCudnn, kFlash, kEfficient };
AttentionKernel attention_kernel(const at::Tensor& q, bool documents);
// Whether attention_kernel() may choose cuDNN from now on, in the whole process (true at first); flash serves
// in its place. Not to be changed between a forward and its backward.
void allow_cudnn_attention(bool allowed);
// Whether fp32 and bf16 without documents run libtorch's flash attention on a CPU in place of our kernels, in
// the whole process (false at first), for comparison with programs that do. Not to be changed between a
// forward and its backward.
void use_libtorch_attention_on_cpu(bool used);

struct AttentionGradients {
  at::Tensor q, k, v;
};
AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const Documents& documents,
                                      const AttentionResult& result);

// Their specification, in plain operations with all scores in memory, which serves CPUs where their kernels
// (models/kernels/attention/cpu.h) do not: fp64 and heads larger than theirs. The result's extras are the
// log-sum-exp.
namespace plain {
AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const Documents& documents);
AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const Documents& documents,
                                      const AttentionResult& result);
}  // namespace plain

}  // namespace hyperion::kernels
