// Assembles the heads of multi-head latent attention (models/parts/latent_attention/latent_attention.h) for
// attention.
#pragma once

#include "models/kernels/rope/rope.h"

namespace hyperion::kernels {

// Inputs: q [batch, seq, heads, plain + rotated]; kv [batch, seq, heads, plain + values]; shared [batch, seq,
// rotated], the part of keys that all heads share; cos, sin fp32 [seq, rotated / 2] or [batch, seq, rotated /
// 2]. Returns queries and keys, whose last `rotated` elements are rotated in pairs of neighbours, and values
// padded with zeros to `value_width`, which is at most that of keys: [batch, seq, heads, plain + rotated] and
// [batch, seq, heads, value_width]. Queries are multiplied by `factor`. Every
// result is rounded once.
using LatentHeads = Heads(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& shared,
                          const at::Tensor& cos, const at::Tensor& sin, double factor, int64_t value_width);

// The backward of LatentHeads. `values` is the width of values without zeros.
struct LatentGradients {
  at::Tensor q, kv, shared;
};
using LatentHeadsBackward = LatentGradients(const Heads& grads, const at::Tensor& cos, const at::Tensor& sin,
                                            double factor, int64_t values);

inline void append(Values& kept, const LatentGradients& x) {
  for (const at::Tensor* t : {&x.q, &x.kv, &x.shared}) append(kept, *t);
}

namespace plain {
LatentHeads latent_heads;
LatentHeadsBackward latent_heads_backward;
}  // namespace plain

namespace cpu {
LatentHeads latent_heads;
LatentHeadsBackward latent_heads_backward;
}  // namespace cpu

}  // namespace hyperion::kernels
