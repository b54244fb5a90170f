// Attention on a GPU by libtorch's kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/kernels/attention/attention.h"

namespace hyperion::kernels::gpu {

// These do what those of models/kernels/attention/attention.h do, by a `kernel` for GPUs that serves the
// call.
AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionMask& mask, AttentionKernel kernel);
AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const AttentionMask& mask,
                                      const AttentionResult& result, AttentionKernel kernel);

}  // namespace hyperion::kernels::gpu
