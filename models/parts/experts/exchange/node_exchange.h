// Expert parallelism (EP) over several nodes, in two levels. Level 1 sends a token over the network once for
// each node that holds some of its experts, to the rank with the sender's index in that node; the choices and
// weights of the token travel with it. Level 2 is DispatchExchange and CombineExchange between the ranks of a
// node, for the experts of the node. Its sum of a token's experts is what level 1 brings back; the sender
// adds up the sums of the nodes in the order of the token's choices. Gradients take the same ways.
//
// In place of bf16 the sums travel in 16 bits and a scale for each block (models/kernels/packed_sums), so
// that they are not rounded to bf16 twice. NodeSums then has them, and the graph between the levels has
// tensors without elements.
//
// Both levels exchange rows by a Dispatch in which some choices of a token are absent: in level 1 a choice
// whose node an earlier choice has, in level 2 an expert of another node. An absent choice has no row. It
// names the row of another choice of the token, which Dispatch::present multiplies by zero.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/device/streams.h"
#include "base/exchange.h"
#include "models/layers/block_run.h"
#include "models/layers/parallel_dims.h"
#include "models/parts/experts/exchange/dispatch.h"
#include "models/parts/experts/exchange/expert_exchange.h"

namespace hyperion::models {

// The choices of tokens in groups: of nodes, or of the experts of a node. Each is int32 [tokens, k].
struct PresentChoices {
  int64_t count = 0;      // the number of groups, in all slices
  at::Tensor groups{};    // the group of each choice; `count` if the choice is absent
  at::Tensor stand_in{};  // the choice of the token whose row each choice names; its own if present
};
// Groups choices of experts by slice and node. A choice is absent if an earlier one of the token has the same
// node.
PresentChoices choices_by_node(const at::Tensor& choices, int64_t experts_of_node, int64_t nodes,
                               int64_t slices = 1);
// Groups choices by expert. A choice is absent if it is none of the `experts` from `first` on. Every token
// has chosen one of them.
PresentChoices choices_in_node(const at::Tensor& choices, int64_t first, int64_t experts);

// Sorts the present choices by group. The rows of absent ones stand behind the others until drop_absent().
// expert_rows: the present choices of each group. dtype: that of weights.
Dispatch dispatch_present(const at::Tensor& choices, const PresentChoices& present, at::ScalarType dtype);
// Drops the rows of absent choices. rows: the number of present ones.
void drop_absent(Dispatch& dispatch, int64_t rows);

// The exchange of the counts of both levels, in flight, and then their copy to the host.
class NodeCounts {
 public:
  // choices: int32 [tokens, k], of `experts` experts. dtype: that of weights. equal, unit: see
  // CountsExchange.
  NodeCounts(const at::Tensor& choices, int64_t experts, at::ScalarType dtype, const NodeGroups& groups,
             bool equal, std::optional<int64_t> unit, int64_t slices = 1);

  // The dispatch of level 1. Its expert_rows are those of all experts in each slice. It has the rows of
  // absent choices until wait().
  const std::shared_ptr<Dispatch>& dispatch() const { return dispatch_; }

  // Level 2 of a slice.
  struct InNode {
    std::shared_ptr<Dispatch> dispatch{};  // without an order, which needs the choices of the received tokens
    std::shared_ptr<const ExchangePlan> exchange{};
  };

  // Waits for the counts and returns the rows of level 1 to and from each node, of each slice. This is the
  // only place where the host waits.
  std::vector<std::shared_ptr<const ExchangePlan>> wait();
  // Returns level 2 of each slice. Call it behind wait().
  std::vector<InNode> take_in_node() { return std::move(in_node_); }
  bool equal() const { return equal_; }

 private:
  NodeGroups groups_;
  bool equal_;
  std::optional<int64_t> unit_;
  std::shared_ptr<Dispatch> dispatch_;
  std::shared_ptr<Dispatch> rows_in_node_;  // the counts of level 2, of all slices
  std::optional<CountsExchange> counts_in_node_;
  std::vector<InNode> in_node_;
  // [sent or received, slices, nodes, 1 + experts of a node]: for each node the rows of level 1, then the
  // rows of each of its experts. On the host; with a GPU pinned, and valid after `copied_`.
  at::Tensor counts_;
  DeviceEvent copied_;
};

// The tokens of a microbatch, on their way to the nodes of their experts in slices. Work between construction
// and wait() hides the exchange, in backward too.
class NodeDispatchExchange {
 public:
  // Sends x [tokens, dim] and weights [tokens, k]. counts: the exchange of counts that completes `routing`
  // but for routing.in_node; nullopt: `routing` is complete. Collective, as is its backward. SAC saves the
  // rows that were received.
  NodeDispatchExchange(const at::Tensor& x, const at::Tensor& weights, KeptRouting& routing,
                       std::optional<NodeCounts> counts, const NodeGroups& groups, const BlockRun& run);

  struct Received {
    at::Tensor x, weights;  // [received, dim] and [received, k]
    NodeLevel level{};      // level 2
    KeptRouting routing{};  // of level 2
  };
  // Returns what level 2 sends to the experts of a slice. Weights of experts of other nodes are zero. Call it
  // once for each slice, in order, and send a slice's results between nodes before the next call (NodeSums).
  Received wait(size_t slice);

  // Level 1 of the sums of experts' results: CombineExchange between the nodes takes it.
  const NodeLevel& level() const { return level_; }

 private:
  KeptRouting routing_;
  NodeGroups groups_;
  NodeLevel level_;
  std::vector<NodeCounts::InNode> in_node_;  // of each slice; empty if `routing` was complete
  at::Tensor choices_;                       // [received of all slices, k], valid after `pending_`
  Pending pending_;
  DispatchExchange weights_, tokens_;  // tokens_ take long, and the first slice needs its weights
};

}  // namespace hyperion::models
