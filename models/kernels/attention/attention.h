// Scaled dot-product attention with grouped queries, and its backward, on the fastest backend for the device
// and dtype.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "models/kernels/attention/mask.h"

namespace hyperion::kernels {

// AttentionResult is saved by forward for backward, which also takes the merged output and log-sum-exp of
// several calls (models/kernels/attention/merge.h), with the extras of any of them.
struct AttentionResult {
  at::Tensor output;  // [batch, heads, queries, head_dim] in q's dtype
  // Natural logarithm of the sum of exponentials of the scaled scores, fp32 (fp64 for fp64) [batch, heads,
  // queries]; for a backward on a GPU contiguous, with documents as flash keeps it. Undefined with documents
  // by kEfficient, which keeps it by document, in the extras.
  at::Tensor lse;
  std::vector<at::Tensor> extras;  // backend-specific
};

// q [batch, heads, queries, head_dim]; k, v [batch, kv_heads, keys, head_dim], heads a multiple of kv_heads;
// scale 1/sqrt(head_dim). `mask` is on q's device. Values, the output and its gradient may have a smaller
// v_head_dim, which costs a copy where value_width() is head_dim.
AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionMask& mask);

// The facts of a call by which its kernel is chosen.
struct AttentionCall {
  at::ScalarType dtype;
  int64_t head_dim, v_head_dim;  // of queries and keys, and of values
  int64_t queries, keys;
  MaskKind mask = MaskKind::kCausal;
  int64_t window = 0;  // AttentionMask::window
};
enum class AttentionKernel {
  kLibtorchCpu,  // on a CPU libtorch's flash attention
  kCpu,          // on a CPU ours (models/kernels/attention/cpu.h)
  kPlain,        // on a CPU plain operations
  // cuDNN is the fastest on Hopper, but builds a graph for every new length (prompts come in all lengths),
  // does not repeat its bits, and takes no window from libtorch. Causal attention to more keys than queries
  // is two of its calls (models/kernels/attention/merge.h).
  kCudnn,
  // Flash repeats its bits where libtorch is asked for deterministic algorithms, and takes documents as
  // sequences of different lengths.
  kFlash,
  // Takes documents as kFlash does. Its backward places a window right only where a sequence has as many
  // queries as keys.
  kEfficient,
};
// Returns whether a kernel computes the call, with its mask, on the kernel's device. It is a pure function.
bool serves(AttentionKernel kernel, const AttentionCall& call);
// Returns the fastest kernel of the device that serves the call and may be chosen. Throws Error(kUsage) if no
// kernel of a GPU serves it.
AttentionKernel attention_kernel(const AttentionCall& call, at::Device device);
// Returns the width in which a call's values are best made: v_head_dim if its kernel takes values narrower
// than keys, else head_dim, with zeros behind the values.
int64_t value_width(const AttentionCall& call, at::Device device);
// Sets whether attention_kernel() may choose cuDNN from now on, in the whole process (true at first); flash
// serves in its place. Not to be changed between a forward and its backward.
void allow_cudnn_attention(bool allowed);
// Sets whether attention_kernel() may choose kLibtorchCpu from now on, in the whole process (false at first),
// for comparison with programs that run it. Not to be changed between a forward and its backward.
void use_libtorch_attention_on_cpu(bool used);

struct AttentionGradients {
  at::Tensor q, k, v;
};
AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const AttentionMask& mask,
                                      const AttentionResult& result);

// Their specification, in plain operations with all scores in memory, which serves CPUs where their kernels
// (models/kernels/attention/cpu.h) do not: fp64 and heads larger than theirs.
namespace plain {
AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionMask& mask);
AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const AttentionMask& mask,
                                      const AttentionResult& result);
}  // namespace plain

}  // namespace hyperion::kernels
