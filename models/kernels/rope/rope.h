// RoPE: rotates query and key heads by their position (RoFormer, arXiv 2104.09864), in fp32 with one
// rounding.
#pragma once

#include "models/args/rope_args.h"
#include "models/kernels/kernel.h"

namespace hyperion::kernels {

// Heads of queries, keys and values of the same tokens: [batch, seq, heads, head_dim].
struct Heads {
  at::Tensor q, k, v;
};
// Forward returns rotated q and k, and a copy of v if it is defined. Backward returns the gradients of
// forward's inputs from those of its outputs. cos, sin: fp32 [seq, head_dim/2] or [batch, seq, head_dim/2].
// With parts > 1 the tensors before rotation (forward's inputs, backward's outputs) are [parts, batch, seq /
// parts, heads, head_dim]. Inputs may be views of one packed product.
using RopeHeads = Heads(const Heads& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                        int64_t parts);

// Helpers of the forms. in_parts() reorders full sequences to [parts, ...]; copy_of_values() copies values,
// which may be in parts, to full sequences.
at::Tensor in_parts(const at::Tensor& x, int64_t parts);
at::Tensor copy_of_values(const at::Tensor& v, int64_t parts);

inline void append(Values& values, const Heads& x) {
  for (const at::Tensor* t : {&x.q, &x.k, &x.v}) append(values, *t);
}
inline const at::Tensor& first_tensor(const Heads& x) {
  return x.q;
}

namespace plain {
RopeHeads rope_heads, rope_heads_backward;
// Rotates one tensor. `inverse` rotates back, which is also the gradient.
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                bool inverse, int64_t parts = 1);
}  // namespace plain

namespace cpu {
RopeHeads rope_heads, rope_heads_backward;
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                bool inverse, int64_t parts = 1);
}  // namespace cpu

}  // namespace hyperion::kernels
