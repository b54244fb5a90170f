// Attention to several parts of the keys, put together from the attention to each.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/kernels/attention/attention.h"

namespace hyperion::kernels {

// output [batch, heads, queries, head_dim], of the part's dtype or fp32, and lse, fp32 (fp64 for fp64), which
// may be views: of attention to the keys so far, and in place of that to those of `part` too, which the same
// queries attended to. In a row without a key the log-sum-exp is -infinity and the output any finite number.
void merge_attention(const at::Tensor& output, const at::Tensor& lse, const AttentionResult& part);

// Causal attention to more keys than queries in two calls, merged: to the queries' own keys, which are as
// many as they, and to all keys before these. The calls are attention_forward() and attention_backward(), as
// each of them chooses its kernel. The extras are those of the first call.
AttentionResult causal_attention_in_two_calls(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
AttentionGradients causal_attention_in_two_calls_backward(const at::Tensor& grad_output, const at::Tensor& q,
                                                          const at::Tensor& k, const at::Tensor& v,
                                                          const AttentionResult& result);

}  // namespace hyperion::kernels
