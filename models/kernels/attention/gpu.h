// Attention on a GPU by libtorch's kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/kernels/attention/attention.h"

namespace hyperion::kernels::gpu {

// As attention_forward() and attention_backward() of models/kernels/attention/attention.h.
AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const Documents& documents, Causality causality);
AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const Documents& documents,
                                      const AttentionResult& result, Causality causality);

}  // namespace hyperion::kernels::gpu
