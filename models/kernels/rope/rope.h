// Rotation of query and key heads by their position (RoFormer, arXiv 2104.09864), fp32 inside, one rounding.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/flavors/model_args.h"

namespace hyperion::kernels {

// x [batch, seq, heads, head_dim]; cos, sin fp32 [seq, head_dim/2] or [batch, seq, head_dim/2]. `inverse`
// turns back, which is also the gradient. With parts > 1 what is not turned, x, or the result of `inverse`,
// lies part by part of the sequences instead: [parts, batch, seq / parts, heads, head_dim].
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                bool inverse, int64_t parts = 1);

// Heads of queries, keys and values of the same tokens.
struct Heads {
  at::Tensor q, k, v;
};
// rope of q and k; v as it is, with parts > 1 in whole sequences like the others. Inputs may be views of one
// packed product.
Heads rope_heads(const Heads& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                 int64_t parts = 1);
// Gradients of rope_heads's inputs from those of its results.
Heads rope_heads_backward(const Heads& grads, const at::Tensor& cos, const at::Tensor& sin,
                          models::RopeStyle style, int64_t parts = 1);

namespace plain {
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                bool inverse, int64_t parts = 1);
Heads rope_heads(const Heads& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                 int64_t parts = 1);
Heads rope_heads_backward(const Heads& grads, const at::Tensor& cos, const at::Tensor& sin,
                          models::RopeStyle style, int64_t parts = 1);
}  // namespace plain

}  // namespace hyperion::kernels
