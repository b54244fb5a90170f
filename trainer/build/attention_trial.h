// The trial of cuDNN's attention on this GPU. cuDNN builds a plan for a shape when it is first asked, and
// some versions refuse shapes or GPUs.
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "models/kernels/attention/attention.h"

namespace hyperion::trainer {

// One call of an attention kernel: q [batch, heads, queries, head_dim], k [batch, kv_heads, keys,
// head_dim], v [batch, kv_heads, keys, v_head_dim].
struct AttentionTrial {
  int64_t batch, heads, kv_heads;
  kernels::AttentionCall call;
};

// Runs cuDNN's forward of a call without documents once, and its backward on autograd's thread as in a step.
// Returns why cuDNN cannot be used for it, or "" if it can. Results that are not finite or far from flash
// attention's are a failure, as an error is. Exchanges nothing with other ranks. Leaves cuDNN allowed, and
// its memory in the allocator's cache.
std::string try_cudnn(const AttentionTrial& trial, at::Device device);

}  // namespace hyperion::trainer
