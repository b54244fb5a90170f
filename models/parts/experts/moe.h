// MoE is a mixture of experts: the feed-forward part of a block in which a router sends each token to a few
// of many routed experts, and to the shared experts.
//
// A token's way: router.h scores the experts, chooses some and weighs them, and router_losses.h has its
// auxiliary losses; exchange/ sorts the tokens' rows by expert and, with an expert parallel group, sends them
// to the experts' ranks and back, in one step or once per node; experts.h runs the experts of a rank between
// these, by the products in products/.
//
// With a tensor parallel group each rank routes its part of every sequence. With ETP the norm, the choices
// and their weights are all-gathered, each rank multiplies the rows of all ranks by its shard of every
// expert's hidden width, and the outputs, with those of shared experts, are reduce-scattered once. Without
// ETP (ParallelDims::shards_experts) each rank sends its own tokens to the experts, and shared experts
// communicate as a dense feed-forward does.
#pragma once

#include <functional>
#include <optional>

#include "models/parts/dense/feed_forward.h"
#include "models/parts/experts/exchange/expert_exchange.h"
#include "models/parts/experts/exchange/node_exchange.h"
#include "models/parts/experts/experts.h"
#include "models/parts/experts/router.h"
#include "models/parts/experts/router_losses.h"

namespace hyperion::models {

// The load balance of a block's experts without an auxiliary loss (arXiv 2408.15664): a bias is added to the
// experts' scores for the choice only, so that all experts get equally many tokens.
struct ExpertBalance {
  ParameterPtr bias;    // [experts], fp32; saved, but not trained by gradients
  at::Tensor counts{};  // int64 [experts]: the rows of each expert in training forwards since the last update
  bool counts_local_tokens = false;  // whether `counts` lack the tokens of other tensor parallel ranks
  double coefficient = 0;  // the step of the bias update; 0: no update, and only logged steps are counted
  std::shared_ptr<RouterLosses> losses{};  // null: none
};
using ExpertBalancePtr = std::shared_ptr<ExpertBalance>;

class MoE final : public FeedForwardPart {
 public:
  // parameters: made from describe_experts().
  MoE(const PartParameters& parameters, const ModelArgs& args, const ParallelDims& dims);
  at::Tensor forward(const ops::SumAndNorm& h, const BlockRun& run) const override;
  // The layers of the shared experts. The gate is not among them: its products stay in the compute dtype.
  std::vector<Linear*> linears() override;
  int64_t consumers() const override;
  ExpertBalancePtr balance() const override { return balance_; }
  Experts* experts() override { return &experts_; }

 private:
  // The routing, without its exchange while `counts` are in flight.
  struct PendingDispatch {
    KeptRouting routing{};
    std::optional<CountsExchange> counts{};
    std::optional<NodeCounts> node_counts{};  // instead, if tokens travel once per node
  };
  // Scores the experts and chooses some for each token. A recomputation keeps the choices of the forward and
  // returns none; it runs the same kernel, so scores have the same bits.
  kernels::RoutedTokens route(const at::Tensor& logits, const BlockRun& run) const;
  // Returns the sum of the routed experts and of shared(), as Experts::forward(). shared() runs while rows
  // travel.
  at::Tensor sum_of_routed(const at::Tensor& x, const at::Tensor& weights, PendingDispatch& pending,
                           const std::function<at::Tensor()>& shared, const BlockRun& run) const;
  // Starts the exchange of counts. unit: see Experts::unit_of_rows().
  PendingDispatch start_dispatch(const kernels::RoutedTokens& routed, std::optional<int64_t> unit,
                                 const BlockRun& run) const;

  Exchange* etp_group_;  // shards each expert; null: not sharded
  Exchange* ep_group_;   // shards the experts; null: all are local
  NodeGroups ep_nodes_;  // its ranks by node; null if tokens travel once per expert
  int64_t slices_;       // the number of slices of a microbatch's tokens
  RoutingOptions routing_;
  bool forces_balance_;
  Linear gate_;
  Experts experts_;
  std::optional<GatedFeedForward> shared_;
  ExpertBalancePtr balance_;
};

}  // namespace hyperion::models
