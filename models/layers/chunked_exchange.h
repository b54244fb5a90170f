// Async tensor parallelism for GPUs: an all-gather before a product, or a reduce-scatter after it, split into
// one chunk per rank of the group. Each chunk travels while the product of another chunk runs. Ranks send
// chunks directly to each other, not around a ring, so the order of a sum does not depend on the route.
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

#include "base/exchange.h"

namespace hyperion::models {

// All-gathers `shard` [n, k] into `all` [T, n, k], contiguous: all[r] = the shard of rank r. Calls
// multiply(r) once for each rank as soon as all[r] has arrived, this rank first, then the ranks after it,
// with wrap-around. The next shard is in flight during each call.
void gather_chunks(const at::Tensor& all, const at::Tensor& shard, Exchange& group,
                   const std::function<void(int rank)>& multiply);

// Reduce-scatters products: returns the sum, over all ranks of the group, of their product(r) for r = this
// rank, [n, m]. Calls product(r) once for each rank, this rank last; every product is contiguous [n, m] of
// one dtype. Each product is in flight while the next is computed. The sum is in rank order, 16-bit floats in
// fp32, rounded once: on a CPU it has the bits of Exchange::start_reduce_scatter_sum(). Memory holds two
// products to send and one term per rank.
at::Tensor scatter_chunks(Exchange& group, const std::function<at::Tensor(int rank)>& product);

}  // namespace hyperion::models
