// The all-to-all of expert parallelism (EP): it sends rows of tokens to the ranks that hold their experts,
// and the experts' outputs back. Each of E ranks holds the same number of experts; rank r holds the r-th
// part.
//
// Rows are sorted by expert (models/parts/experts/dispatch.h), so the rows for one rank are contiguous. A
// rank receives the rows of rank 0 first, and sorts them by its experts; rows of one expert stay in rank
// order.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/exchange.h"
#include "models/layers/block_run.h"
#include "models/parts/experts/dispatch.h"

namespace hyperion::models {

// The plan of the all-to-all of one layer and microbatch.
struct ExpertExchange {
  std::vector<int64_t> sent, received;      // the number of rows to and from each rank
  std::shared_ptr<const Dispatch> experts;  // sorts received rows by local expert; each row is one assignment
};

// Plans the all-to-all; communicates nothing. counts: this rank's rows for each expert of the layer.
// received: [ranks * local experts], the rows of each rank in turn for each local expert. The plan's tensors
// are on `device`. unit: received groups are padded to multiples of it; nullopt: they are not padded.
ExpertExchange plan_exchange(std::span<const int64_t> counts, std::span<const int64_t> received, int ranks,
                             at::Device device = at::kCPU, std::optional<int64_t> unit = {});

// The exchange of row counts over the EP group, in flight.
class CountsExchange {
 public:
  // equal: all ranks have the same counts (debug.moe_force_load_balance), so nothing is communicated. unit:
  // see plan_exchange().
  CountsExchange(std::shared_ptr<Dispatch> dispatch, Exchange& ep_group, bool equal,
                 std::optional<int64_t> unit);
  // Waits for the counts, also on the host, copies them to the dispatch and returns the plan. This is the
  // only place where the host waits.
  std::shared_ptr<const ExpertExchange> wait();

 private:
  std::shared_ptr<Dispatch> dispatch_;
  int ep_size_;
  std::optional<int64_t> unit_;
  at::Tensor received_;
  Pending pending_;
};

// Sends x [tokens, dim] to the experts and returns the rows for this rank's experts, [received, dim]. If
// `weights` [tokens, k] is defined, rows are multiplied by it first. Collective, as is its backward. SAC
// saves the output, so that the recomputation sends nothing.
at::Tensor rows_for_experts(const at::Tensor& x, const at::Tensor& weights, const KeptRouting& routing,
                            Exchange& ep_group, const BlockRun& run);
// Sends the experts' output rows [received, dim] back and returns their sum for each token, [tokens, dim], as
// sum_rows() does with `weights` and `shared`. Collective, as is its backward. A recomputation leaves the
// elements undefined, and sends nothing without weights. SAC saves the rows that came back.
at::Tensor sum_of_experts(const at::Tensor& outputs, const at::Tensor& weights, const at::Tensor& shared,
                          const KeptRouting& routing, Exchange& ep_group, const BlockRun& run);

}  // namespace hyperion::models
