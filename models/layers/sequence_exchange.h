// Exchanges of rows over tensor parallel ranks that belong to no linear layer: what several layers read, or
// what several have made. Each is a differentiable node whose backward is the other one. `ranks` null: one
// rank has all rows, and they are returned as they are. Every rank of the group must run the same nodes in
// the same order, backward too.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/exchange.h"

namespace hyperion::models {

// x [rows, n] of this rank -> [T * rows, n], rank by rank.
at::Tensor gather_over_ranks(const at::Tensor& x, Exchange* ranks);

// The sum over the ranks of x [T * rows, n], of which each has its part of the terms: this rank's [rows, n],
// rounded once. Not `computes`: its elements are undefined, and nothing is exchanged.
at::Tensor sum_over_ranks(const at::Tensor& x, Exchange* ranks, bool computes = true);

}  // namespace hyperion::models
