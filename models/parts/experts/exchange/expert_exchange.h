// The all-to-all of expert parallelism (EP), by a plan (exchange_plan.h): DispatchExchange sends rows of
// tokens to the ranks that hold their experts, and CombineExchange the experts' outputs back. Each of E ranks
// holds the same number of experts; rank r holds the r-th part.
//
// The rows of a microbatch may travel in slices of its tokens, each by an all-to-all of its own: experts work
// on one slice while the rows of the next one arrive and the outputs of the one before go back, and in
// backward in the opposite order. The exchange changes no bits of outputs and of gradients of rows. wgrad is
// a sum over slices, rounded after each.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/exchange.h"
#include "models/layers/block_run.h"
#include "models/parts/experts/exchange/exchange_plan.h"

namespace hyperion::models {

struct RowsInFlight;

// NodeSums carries the packed sums of rows from the exchange within a node to the one between nodes: of the
// experts' results in forward, of the gradients of rows in backward. The autograd graph has tensors without
// elements in their place (models/parts/experts/exchange/node_exchange.h). It holds one slice at a time: the
// exchange between nodes takes it before the one within a node writes the next. Backward keeps that order,
// because autograd runs the newest node first.
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
