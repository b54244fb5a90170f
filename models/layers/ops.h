// The differentiable operations of a model, except linear layers (models/layers/linear_node.h). Each is one
// autograd node, which saves its inputs and little else. Arithmetic is in fp32 (fp64 for fp64 inputs), and
// each result is rounded once to the input's dtype.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "models/args/activation.h"
#include "models/args/rope_args.h"
#include "models/kernels/attention/attention.h"
#include "models/layers/block_run.h"

namespace hyperion::models::ops {

// Looks up tokens int64 [batch, seq] in weight [vocab, dim] -> [batch, seq, dim].
at::Tensor embedding(const at::Tensor& tokens, const at::Tensor& weight);

// Returns x / sqrt(mean(x^2) + eps) * weight, normalized over the last dimension. x [..., dim], weight [dim].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// The residual stream and its norm, outputs of one node, which adds their gradients.
struct SumAndNorm {
  at::Tensor sum;  // [..., dim]
  // The rms_norm of `sum`, once for each consumer; all share one memory. The backward kernel adds the
  // gradients of the consumers, from the last to the first.
  std::vector<at::Tensor> normed;
};
// Computes sum = residual + x and its norm. Both are [..., dim] of one dtype; x may be flattened to [rows,
// dim]. It is one launch on a GPU, as is its backward apart from wgrad, and one pass over memory on a CPU.
SumAndNorm add_rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps,
                        int64_t consumers = 1);
// Computes the norm alone: sum is x.
SumAndNorm rms_norm_of_residual(const at::Tensor& x, const at::Tensor& weight, double eps,
                                int64_t consumers = 1);

// Applies RoPE to queries [batch, seq, heads, head_dim] and keys [batch, seq, kv_heads, head_dim]; values, of
// the keys' shape, pass through. `style` says which elements form a pair. cos and sin of the angles are fp32
// [seq, head_dim/2], or [batch, seq, head_dim/2] with positions per document.
//
// q, k and v may come as [parts, batch, seq / parts, ...], one part of the sequences after the other; the
// results are full sequences. They may be views of one packed product [..., (heads + 2 kv_heads) * head_dim]:
// a GPU rotates them in one launch, and its backward returns views of one packed gradient. The results do not
// alias the product.
struct RotatedHeads {
  at::Tensor q, k, v;
};
RotatedHeads rope_qkv(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cos,
                      const at::Tensor& sin, RopeStyle style);

// Returns activation(gate) * up, elementwise. gate and up may be the halves of one packed product [..., 2
// hidden]. If they are, and always on a GPU, backward returns the gradients as halves of one packed tensor.
at::Tensor gated_activation(const at::Tensor& gate, const at::Tensor& up, Activation activation);

// Returns the clamped gate of h [..., 2 hidden] -> [..., hidden]; see models/kernels/clamped_gate.
at::Tensor clamped_gate(const at::Tensor& h);

// Computes attention under `mask`; shapes as in models/kernels/attention/attention.h. `selective`
// saves the output if it is not null. sinks [heads] (models/kernels/attention/sinks.h), undefined without.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const kernels::AttentionMask& mask, SelectiveCheckpoint* selective = nullptr,
                     const at::Tensor& sinks = {});

// Returns stream + x, the last sum of a block. A recomputation skips it: the elements are undefined.
at::Tensor residual_sum(const at::Tensor& stream, const at::Tensor& x, const BlockRun& run = {});

}  // namespace hyperion::models::ops
