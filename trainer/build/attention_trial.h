// Whether cuDNN's attention works on this GPU. It builds a plan for a shape when it is first asked, and some
// versions refuse shapes or GPUs.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "models/kernels/attention/attention.h"

namespace hyperion::trainer {

// What a kernel of attention is called with: q [batch, heads, queries, head_dim], k and v [batch, kv_heads,
// keys, head_dim].
struct AttentionCall {
  int64_t batch, heads, kv_heads, head_dim, queries, keys;
  at::ScalarType dtype;
  kernels::Causality causality;
};

// Why cuDNN cannot be used for this call; empty: it can. Runs its forward, and its backward on autograd's
// thread as in a step, once. Results that are not finite, or far from flash attention's, are a failure like
// an error. Exchanges nothing with other ranks. Leaves cuDNN allowed, and its memory in the allocator's
// cache.
std::string try_cudnn(const AttentionCall& call, at::Device device);

}  // namespace hyperion::trainer
