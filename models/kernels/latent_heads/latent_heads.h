// Heads of multi-head latent attention (models/parts/latent_attention/latent_attention.h) as attention reads them.
#pragma once

#include "models/kernels/rope/rope.h"

namespace hyperion::kernels {

// q [batch, seq, heads, plain + rotated]; kv [batch, seq, heads, plain + values]; shared [batch, seq,
// rotated] of all heads' keys; cos, sin: fp32 [seq, rotated / 2] or [batch, seq, rotated / 2] -> queries and
// keys with their rotated elements behind the others, and values with zeros behind them as wide as those:
// [batch, seq, heads, plain + rotated] each. Neighbouring elements are rotated. Queries are multiplied by
// `factor`. Every result is rounded once.
using LatentHeads = Heads(const at::Tensor& q, const at::Tensor& kv, const at::Tensor& shared,
                          const at::Tensor& cos, const at::Tensor& sin, double factor);

// The gradients of its inputs from those of its results; `values`: how wide values are.
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
