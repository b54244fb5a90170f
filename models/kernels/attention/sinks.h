// Sinks of attention: a learned number per head that is one more score of every query, to a key whose value
// is 0. It takes its part of the softmax and gives nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/kernels/attention/attention.h"

namespace hyperion::kernels {

// Turns the attention to all keys into that to the keys and the sink, in place: lse' = log(exp(lse) +
// exp(sink)) and output' = output sigmoid(lse - sink). attention_backward() given the new result returns the
// gradients of q, k and v. sinks [heads], of any dtype. The output may be of q's dtype or fp32. Throws
// Error(kUsage) if the kernel leaves no log-sum-exp (AttentionResult::lse).
void add_sinks(const at::Tensor& output, const at::Tensor& lse, const at::Tensor& sinks);

// Returns the gradient of `sinks`, in their dtype, of the queries of one call, or of calls that were merged:
// -sum exp(sink - lse') (grad_output . output') over batch and queries.
at::Tensor sinks_gradient(const at::Tensor& grad_output, const at::Tensor& output, const at::Tensor& lse,
                          const at::Tensor& sinks);

}  // namespace hyperion::kernels
