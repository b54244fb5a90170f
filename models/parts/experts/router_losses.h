// The auxiliary losses of a router, which a step adds to its loss with their coefficients. A block has E
// experts, k of them for each token. The probabilities p of a token are its scores divided by their sum.
//
// - router_z_loss: the mean over tokens of (log-sum-exp of the router's logits)^2. ST-MoE, arXiv 2202.08906,
//   equation 5.
// - sequence_aux_loss: the mean over sequences of sum_e f_e P_e. DeepSeek-V3, arXiv 2412.19437, equations 17
//   to 20. f_e is E / (k S) times the number of the sequence's S tokens whose k best scores, without bias and
//   groups, have e among them; P_e is the mean of p_e over these S tokens.
// - global_aux_loss: the mean over microbatches of E sum_e f_e P_e. "Demons in the Detail", arXiv 2501.11873.
//   f_e is the share of the tokens that are sent to e, over all ranks and over the microbatches of the step
//   up to this one, as in the paper's algorithm 1; P_e is the mean of p_e over the microbatch's tokens of all
//   ranks.
//
// All tokens count, those without a label too. Counts are summed, as integers, over all ranks that share a
// sequence or the batch before f is multiplied by P. f has no gradient, so each rank computes the gradient
// for its own tokens' scores alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/layers/layer_metrics.h"
#include "models/layers/parallel_dims.h"
#include "models/parts/experts/router.h"

namespace hyperion::models {

class RouterLosses {
 public:
  // block: "layers.3", for metrics.
  RouterLosses(std::string block, const ExpertArgs& args, const ParallelDims& dims);

  // Call before the first forward of a step, whose microbatches have `tokens` tokens, of all ranks together.
  void start_step(int64_t tokens, int64_t microbatches);

  // Counts the tokens of each expert in a training forward and returns what the backward adds to the gradient
  // of the logits [tokens of this rank, experts]. expert_rows: the tokens that are sent to each expert
  // (Dispatch). sequences: the number of sequences that the tokens are of, equally many each. Collective.
  // metrics: takes the losses, unless null.
  std::shared_ptr<const kernels::RouterLossGradient> count(const at::Tensor& logits, const at::Tensor& scores,
                                                           const at::Tensor& expert_rows, int64_t sequences,
                                                           LayerMetrics* metrics);

 private:
  at::Tensor sequence_factors(const at::Tensor& logits, const at::Tensor& scores, int64_t sequences) const;
  at::Tensor global_factors(const at::Tensor& scores, const at::Tensor& expert_rows);
  void record(const char* name, const at::Tensor& loss, LayerMetrics& metrics) const;

  std::string block_;
  RouterLossArgs coefficients_;
  RoutingOptions unbiased_;                 // the choice of the best scores of all experts
  std::vector<Exchange*> sequence_groups_;  // the ranks that share each sequence
  std::vector<Exchange*> batch_groups_;     // the ranks whose expert_rows are of other tokens
  int64_t ranks_of_sequence_;
  double tokens_ = 0;  // of a step
  double microbatches_ = 0;
  double forwards_ = 0;  // of the step so far
  at::Tensor sent_{};    // int64 [experts]: the tokens of all ranks in these forwards
};

}  // namespace hyperion::models
