// Differentiable collectives over tensor parallel ranks for tensors that several layers read or write,
// outside linear layers: an all-gather and a reduce-scatter. The backward of each is the other. With a null
// group they return x. All ranks of the group must run the same nodes in the same order, in backward too.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/exchange.h"

namespace hyperion::models {

// All-gathers x [rows, n] -> [T * rows, n], in rank order.
at::Tensor gather_over_ranks(const at::Tensor& x, Exchange* group);

// Reduce-scatters x [T * rows, n] -> [rows, n], rounded once. Unless `computes`, forward communicates nothing
// and the elements are undefined.
at::Tensor sum_over_ranks(const at::Tensor& x, Exchange* group, bool computes = true);

}  // namespace hyperion::models
