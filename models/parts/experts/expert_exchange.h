// The all-to-all of expert parallelism (EP): it sends rows of tokens to the ranks that hold their experts,
// and the experts' outputs back. Each of E ranks holds the same number of experts; rank r holds the r-th
// part.
//
// Rows are sorted by expert (models/parts/experts/dispatch.h), so the rows for one expert are a block. A rank
// receives each block at its place in the order of its experts, where groups may be padded, and sends the
// experts' outputs back from there: received rows are never permuted. Rows of one expert are in the order of
// the ranks that sent them.
//
// The rows of a microbatch may travel in slices of its tokens, each by an all-to-all of its own: experts work
// on one slice while the rows of the next one arrive and the outputs of the one before go back, and in
// backward in the opposite order. The exchange changes no bits of outputs and of gradients of rows. wgrad is
// a sum over slices, rounded after each.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/device/streams.h"
#include "base/exchange.h"
#include "models/layers/block_run.h"
#include "models/parts/experts/dispatch.h"

namespace hyperion::models {

// The plan of the all-to-all of one layer and slice of a microbatch's tokens.
struct ExpertExchange {
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
ExpertExchange plan_exchange(std::span<const int64_t> counts, std::span<const int64_t> received, int ranks,
                             std::optional<int64_t> unit, int64_t first_row = 0);
// Returns the blocks of an exchange of [slices * ranks, width] in which each rank gets one row of each slice.
std::vector<RowBlock> blocks_of_slices(int64_t ranks, int64_t slices);
// Returns where the group of each local expert ends in the tensor of received rows, padding included.
std::vector<int64_t> ends_of_groups(const ExpertExchange& exchange);
// Returns ExpertExchange::experts on the device of the rows. The host does not wait.
Dispatch groups_of_received(const ExpertExchange& exchange, std::optional<int64_t> unit, at::Device device);

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
  std::vector<std::shared_ptr<ExpertExchange>> wait();
  // The groups that one of wait()'s plans lacks.
  std::shared_ptr<const Dispatch> groups(const ExpertExchange& plan) const;

 private:
  std::shared_ptr<Dispatch> dispatch_;
  int ep_size_;
  std::optional<int64_t> unit_;
  at::Tensor received_;                    // [slices * ranks, local experts]
  std::vector<int64_t> received_on_host_;  // the same, known after wait()
  Pending pending_;
  at::Tensor
      copies_;  // pinned [2, slices * ranks, local experts]: own and received counts; undefined on a CPU
  DeviceEvent copied_;
};

struct RowsInFlight;

// NodeSums carries the packed sums of rows from the exchange within a node to the one between nodes: of the
// experts' results in forward, of the gradients of rows in backward. The autograd graph has tensors without
// elements in their place (models/parts/experts/node_exchange.h). It holds one slice at a time: the exchange
// between nodes takes it before the one within a node writes the next. Backward keeps that order, because
// autograd runs the newest node first.
struct NodeSums {
  at::Tensor results{}, gradients{};
};
// NodeLevel says whether an exchange is the one within a node or the one between nodes, if sums travel
// packed.
struct NodeLevel {
  std::shared_ptr<NodeSums> sums{};  // null: sums are tensors of the graph
  bool packs = false;                // true for the exchange within a node, which packs sums
};

// The rows of a microbatch, on their way to the experts in slices. Work between construction and wait() hides
// the exchange, in backward too: there the gradients travel while the nodes of that work run.
class DispatchExchange {
 public:
  // Sends x [tokens, dim]. If `weights` [tokens, k] is defined, rows are multiplied by it first. counts: the
  // exchange of counts that completes `routing`; nullopt: `routing` is complete. The gather is queued before
  // the host waits for the counts. Collective, as is its backward. SAC saves the rows that were received, so
  // that the recomputation sends nothing.
  DispatchExchange(const at::Tensor& x, const at::Tensor& weights, KeptRouting& routing,
                   std::optional<CountsExchange> counts, Exchange& ep_group, const BlockRun& run,
                   NodeLevel level = {});
  const KeptRouting& routing() const { return routing_; }
  const NodeLevel& level() const { return level_; }
  // Returns the rows of a slice for this rank's experts in their order, [received, dim]; rows of the padding
  // are zeros. Call it once for each, in order.
  at::Tensor wait(size_t slice = 0);

 private:
  KeptRouting routing_;
  Exchange* ep_group_;
  NodeLevel level_;
  std::shared_ptr<RowsInFlight> in_flight_;
  std::vector<at::Tensor> rows_;  // of each slice, outputs of the graph; elements are undefined until wait()
};

struct ResultsInFlight;

// The experts' outputs of a microbatch, on their way back in slices. Work between send() and sum() hides the
// exchange, in backward too.
class CombineExchange {
 public:
  // weights: [tokens, k], by which sum() multiplies outputs, or undefined.
  CombineExchange(const KeptRouting& routing, const at::Tensor& weights, Exchange& ep_group,
                  const BlockRun& run, NodeLevel level = {});
  // Sends the output rows [received, dim] of the next slice back, without those of the padding. Collective,
  // as is its backward. A recomputation sends nothing without weights, or if SAC has saved the rows.
  void send(const at::Tensor& outputs);
  // Returns the sum of outputs for each token, [tokens, dim], as sum_rows() does with the weights and
  // `shared`. Call it once, behind the last send(). A recomputation leaves the elements undefined. SAC saves
  // the rows that came back if there are weights.
  at::Tensor sum(const at::Tensor& shared);

 private:
  KeptRouting routing_;
  at::Tensor weights_;
  Exchange* ep_group_;
  const BlockRun* run_;
  NodeLevel level_;
  std::shared_ptr<ResultsInFlight> in_flight_;
  std::vector<at::Tensor> sent_;  // outputs of the graph without elements
};

}  // namespace hyperion::models
