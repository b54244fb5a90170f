// Mixture of experts: the feed-forward part of a block in which a router sends each token to a few of many
// experts, and to those that all tokens share.
//
// With a tensor parallel group each rank routes its part of every sequence. Where these ranks divide each
// expert, the norm, the choices and their weights are gathered, all experts multiply the rows of all ranks
// with their part of the hidden width, and what they make, shared experts' too, is added up over the ranks
// once. Where they do not (ParallelDims::divides_experts), nothing is gathered for the experts, to which each
// rank sends its tokens; shared experts exchange as a dense feed-forward does.
#pragma once

#include <optional>

#include "models/parts/dense/feed_forward.h"
#include "models/parts/experts/expert_exchange.h"
#include "models/parts/experts/experts.h"
#include "models/parts/experts/router.h"

namespace hyperion::models {

// How many tokens went to each expert of a block, and what is added to the experts' scores, for the choice
// alone, so that all of them get equally many (arXiv 2408.15664).
struct ExpertBalance {
  ParameterPtr bias;  // [experts], fp32; saved, but not trained by gradients
  // int64 [experts]: rows in the training forwards since the last update.
  at::Tensor counts{};
  bool counts_own_part = false;  // those of other tensor parallel ranks are not among them
  double coefficient = 0;        // of the update; 0: none, and only logged steps are counted
};
using ExpertBalancePtr = std::shared_ptr<ExpertBalance>;

class MoE final : public FeedForwardPart {
 public:
  // parameters: of describe_experts().
  MoE(const PartParameters& parameters, const ModelArgs& args, const ParallelDims& dims);
  at::Tensor forward(const ops::SumAndNorm& h, const BlockRun& run) const override;
  // Those of the shared experts. The gate's is not among them: its products stay in the compute dtype.
  std::vector<Linear*> linears() override;
  int64_t consumers() const override;
  ExpertBalancePtr balance() const override { return balance_; }
  Experts* experts() override { return &experts_; }

 private:
  // How tokens are sent; the exchange is missing where `counts` are still on their way.
  struct Sending {
    KeptRouting routing{};
    std::optional<CountsExchange> counts{};
  };
  // In a run that is repeated without choices, which are kept, but with the same kernel: scores keep their
  // bits.
  kernels::RoutedTokens route(const at::Tensor& logits, const BlockRun& run) const;
  // unit: what groups of rows are padded to multiples of, where they are.
  Sending start_dispatch(const kernels::RoutedTokens& routed, std::optional<int64_t> unit,
                         const BlockRun& run) const;
  static KeptRouting finish(Sending sending, const BlockRun& run);

  Exchange* tensor_;  // that divide each expert; null: none do
  Exchange* ranks_;   // that share the experts; null: every one is here
  RoutingOptions routing_;
  bool forces_balance_;
  Linear gate_;
  Experts experts_;
  std::optional<GatedFeedForward> shared_;
  ExpertBalancePtr balance_;
};

}  // namespace hyperion::models
