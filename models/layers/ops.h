// The differentiable operations a model is made of, linear layers (models/layers/linear_node.h) apart. Each
// is one autograd node that saves its inputs and little else; arithmetic inside is at least fp32 (fp64 for
// fp64 inputs) and each result is rounded once to the input's dtype.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "models/args/model_args.h"
#include "models/kernels/attention/attention.h"
#include "models/layers/block_run.h"

namespace hyperion::models::ops {

// Rows of weight [vocab, dim] for tokens int64 [batch, seq] -> [batch, seq, dim].
at::Tensor embedding(const at::Tensor& tokens, const at::Tensor& weight);

// x / sqrt(mean(x^2) + eps) * weight over the last dimension. x [..., dim], weight [dim].
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// The residual stream and its norm, as one node: both gradients are added up in it.
struct SumAndNorm {
  at::Tensor sum;  // [..., dim]
  // rms_norm of sum, once for each branch that reads it, all in one memory. The gradients of several branches
  // are added up by the kernel of backward, from the last one to the first.
  std::vector<at::Tensor> normed;
};
// sum = residual + x, both [..., dim] of one dtype; x may have the shape of rows. One launch on a GPU, and
// backward too but for the weight's gradient; one pass over memory by a CPU's kernels.
SumAndNorm add_rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps,
                        int64_t branches = 1);
// The same where there is nothing to add: sum is x.
SumAndNorm rms_norm_of_residual(const at::Tensor& x, const at::Tensor& weight, double eps,
                                int64_t branches = 1);

// Queries [batch, seq, heads, head_dim] and keys [batch, seq, kv_heads, head_dim] of a block with pairs of
// their elements rotated by the angles whose cosines and sines are given, fp32 [seq, head_dim/2] or, with
// per-document positions, [batch, seq, head_dim/2], and its values of the keys' shape as they are: one node.
// Which elements pair up is the style's. q, k and v may be [parts, batch, seq / parts, ...], part by part of
// the sequences; the results are whole sequences. q, k and v may be views of one packed product [..., (heads
// + 2 kv_heads) * head_dim], and are one launch on a GPU; fused kernels write one packed gradient in backward
// and return its views. The results hold no memory of the product.
struct RotatedHeads {
  at::Tensor q, k, v;
};
RotatedHeads rope_qkv(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& cos,
                      const at::Tensor& sin, RopeStyle style);

// activation(gate) * up, element by element. gate and up may be the halves of one packed product [..., 2
// hidden]; then, and always on a GPU, backward returns the gradients as halves of one packed tensor.
at::Tensor gated_activation(const at::Tensor& gate, const at::Tensor& up, Activation activation);

// Causal attention inside documents; shapes as in models/kernels/attention/attention.h. `selective` saves its
// result; null: there is none.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const kernels::Documents& documents, SelectiveCheckpoint* selective = nullptr);

// The last sum of a block, stream + x; in a run that recomputes it is not made, and its elements are
// undefined.
at::Tensor residual_sum(const at::Tensor& stream, const at::Tensor& x, const BlockRun& run = {});

}  // namespace hyperion::models::ops
