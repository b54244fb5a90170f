// Expert parallelism: how rows of tokens reach the ranks that hold their experts, and what these made of them
// comes back. Rank r of E has the r-th part of the experts, equally many each. Rows are in the order of their
// experts (models/parts/experts/dispatch.h), so those for one rank lie together; it receives those of rank 0 first, and
// puts them in the order of its experts, of one expert in the order of the ranks.
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

// What is exchanged with each rank of the group; the plan of one layer and microbatch.
struct ExpertExchange {
  std::vector<int64_t> sent, received;      // rows to and from each rank
  std::shared_ptr<const Dispatch> experts;  // of received rows, one slot each, among this rank's experts
};

// Pure. counts: this rank's rows for each of all experts; received: [ranks * experts here], for each rank in
// turn its rows for each expert that is here. Tensors on `device`. unit: what groups of received rows are
// padded to multiples of; none: they are not.
ExpertExchange plan_exchange(std::span<const int64_t> counts, std::span<const int64_t> received, int ranks,
                             at::Device device = at::kCPU, std::optional<int64_t> unit = {});

// The counts of all ranks, on their way.
class CountsExchange {
 public:
  // equal: every rank has the same counts, as with debug.moe_force_load_balance; nothing is exchanged.
  // unit: as plan_exchange()'s.
  CountsExchange(std::shared_ptr<Dispatch> dispatch, Exchange& ranks, bool equal,
                 std::optional<int64_t> unit);
  // Completes the dispatch's counts on the host, which waits here and nowhere else.
  std::shared_ptr<const ExpertExchange> wait();

 private:
  std::shared_ptr<Dispatch> dispatch_;
  int ranks_;
  std::optional<int64_t> unit_;
  at::Tensor received_;
  Pending pending_;
};

// x [tokens, dim]; weights [tokens, k], or undefined, by which rows are multiplied before they are sent ->
// rows that this rank's experts were sent, [received, dim]. Collective, as its backward. A
// SelectiveCheckpoint keeps them: a run that is repeated sends nothing.
at::Tensor rows_for_experts(const at::Tensor& x, const at::Tensor& weights, const KeptRouting& routing,
                            Exchange& ranks, const BlockRun& run);
// What experts made of received rows, [received, dim] -> for each token the sum of its slots as sum_rows()
// makes it, [tokens, dim]. In a run that recomputes its elements are undefined, and without weights nothing
// is sent. Collective, as its backward; a SelectiveCheckpoint keeps what came back.
at::Tensor sum_of_experts(const at::Tensor& made, const at::Tensor& weights, const at::Tensor& shared,
                          const KeptRouting& routing, Exchange& ranks, const BlockRun& run);

}  // namespace hyperion::models
