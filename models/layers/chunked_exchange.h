// Exchanges of a tensor parallel group in as many chunks as it has ranks, each under the product of another
// chunk, for GPUs: instead of one all-gather before a product, and of one reduce-scatter after it. Each rank
// sends every other its chunk directly, so that nothing is passed on and no sum depends on the way.
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

#include "base/exchange.h"

namespace hyperion::models {

// all[r] = shard of rank r: [n, k] into [T, n, k], contiguous. Calls multiply(r) for each rank once, this one
// first and then those behind it, as soon as all[r] is there; the next rows are on their way meanwhile.
void gather_chunks(const at::Tensor& all, const at::Tensor& shard, Exchange& ranks,
                   const std::function<void(int rank)>& multiply);

// The sum over the ranks of what product(r), [n, m] contiguous and of one dtype, gives for this rank as r:
// [n, m]. product(r) is called once for each rank, this one last; its result is on its way under the next
// product. Terms add up in rank order, 16-bit floats in single precision, rounded once: on a CPU the bits of
// Exchange::start_reduce_scatter_sum(). Holds the terms of two targets and of all sources.
at::Tensor scatter_chunks(Exchange& ranks, const std::function<at::Tensor(int rank)>& product);

}  // namespace hyperion::models
