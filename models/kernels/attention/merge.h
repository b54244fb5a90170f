// Attention to several parts of the keys, put together from the attention to each.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/kernels/attention/attention.h"

namespace hyperion::kernels {

// output [batch, heads, queries, head_dim], of the part's dtype or fp32, and lse, fp32 (fp64 for fp64), which
// may be views: of attention to the keys so far, and in place of that to those of `part` too, which the same
// queries attended to. In a row without a key the log-sum-exp is -infinity and the output any finite number.
void merge_attention(const at::Tensor& output, const at::Tensor& lse, const AttentionResult& part);

}  // namespace hyperion::kernels
