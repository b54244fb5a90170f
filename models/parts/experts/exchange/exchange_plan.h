// ExchangePlan says which rows go to which rank and where they lie there: a plan made of numbers alone.
// CountsExchange exchanges the counts of rows that it is made of, and KeptRouting keeps plans for backward.
//
// Rows are sorted by expert (dispatch.h), so the rows for one expert are a block. A rank receives each block
// at its place in the order of its experts, where groups may be padded, and sends the experts' outputs back
// from there: received rows are never permuted. Rows of one expert are in the order of the ranks that sent
// them.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/device/streams.h"
#include "base/exchange.h"
#include "models/kernels/router/router.h"
#include "models/parts/experts/exchange/dispatch.h"

namespace hyperion::models {

// The plan of the all-to-all of one layer and slice of a microbatch's tokens.
struct ExchangePlan {
  std::vector<int64_t> sent, received;  // the number of rows to and from each rank
  // [ranks * local experts]: the rows of each rank in turn for each local expert of the rank that receives
  // them, in the tensor of sent rows, which has those of all slices, and in that of received ones.
  std::vector<RowBlock> sent_blocks, received_blocks;
  std::vector<RowBlock> padding;              // the other rows of the tensor of received rows, in their order
  int64_t received_rows = 0;                  // with padding
  std::shared_ptr<const Dispatch> experts{};  // the groups of received rows, which are in order
};

// Returns how many rows go to and come from each rank. counts: this rank's rows for each expert of the layer.
// received: [ranks * local experts], the rows of each rank in turn for each local expert. unit: groups of
// received rows are padded to multiples of it, and to at least `unit`; nullopt: they are not padded.
// first_row: the slice's first row in the tensor of sent rows.
ExchangePlan plan_exchange(std::span<const int64_t> counts, std::span<const int64_t> received, int ranks,
                           std::optional<int64_t> unit, int64_t first_row = 0);
// Returns the sum of counts of rows.
int64_t total_rows(std::span<const int64_t> counts);
// Returns the blocks of an exchange of [slices * ranks, width] in which each rank gets one row of each slice.
std::vector<RowBlock> blocks_of_slices(int64_t ranks, int64_t slices);
// Returns where the group of each local expert ends in the tensor of received rows, padding included.
std::vector<int64_t> ends_of_groups(const ExchangePlan& exchange);
// Returns ExchangePlan::experts on the device of the rows. The host does not wait.
Dispatch groups_of_received(const ExchangePlan& exchange, std::optional<int64_t> unit, at::Device device);

// The routing of a microbatch in one MoE layer. Forward keeps it for the recomputation, which must not route
// again: experts with nearly equal scores could change places.
struct KeptRouting {
  std::shared_ptr<const Dispatch> dispatch{};
  // The exchange of each slice; empty without expert parallelism.
  std::vector<std::shared_ptr<const ExchangePlan>> exchanges{};
  // The routing of the tokens of each slice that this rank received for its node; empty unless tokens travel
  // once per node.
  std::vector<std::shared_ptr<const KeptRouting>> in_node{};
  // The mean over the ranks of the rows that their experts get, of `in_node`; 0: the rows that this rank
  // sends.
  int64_t mean_rows = 0;
  std::shared_ptr<const kernels::RouterLossGradient> losses{};  // null: the router has no auxiliary losses
};

// The exchange of row counts over the EP group, in flight, and then their copy to the host on a stream of its
// own.
class CountsExchange {
 public:
  // equal: all ranks have the same counts (debug.moe_force_load_balance), so nothing is communicated. unit:
  // see plan_exchange().
  CountsExchange(std::shared_ptr<Dispatch> dispatch, Exchange& ep_group, bool equal,
                 std::optional<int64_t> unit);
  // Waits for the copy, not for work that the compute stream has queued since, sets the counts of the
  // dispatch and returns the plan of each slice without its groups. This is the only place where the host
  // waits.
  std::vector<std::shared_ptr<ExchangePlan>> wait();
  // The groups that one of wait()'s plans lacks.
  std::shared_ptr<const Dispatch> groups(const ExchangePlan& plan) const;

 private:
  std::shared_ptr<Dispatch> dispatch_;
  int ep_size_;
  std::optional<int64_t> unit_;
  at::Tensor received_;                    // [slices * ranks, local experts]
  std::vector<int64_t> received_on_host_;  // the same, known after wait()
  Pending pending_;
  // Pinned [2, slices * ranks, local experts]: own and received counts. Undefined on a CPU.
  at::Tensor copies_;
  DeviceEvent copied_;
};

}  // namespace hyperion::models
