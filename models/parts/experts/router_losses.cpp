#include "models/parts/experts/router_losses.h"

#include <utility>

#include <fmt/format.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace hyperion::models {
namespace {

using at::Tensor;

void sum_over(const std::vector<Exchange*>& groups, const Tensor& counts) {
  for (Exchange* group : groups) group->start_all_reduce_sum(counts).wait();
}

}  // namespace

RouterLosses::RouterLosses(std::string block, const ExpertArgs& args, const ParallelDims& dims)
    : block_(std::move(block)), coefficients_(args.losses), unbiased_(args), ranks_of_sequence_(1) {
  unbiased_.groups = unbiased_.limited_groups = 0;
  for (Exchange* group : {dims.active_tp_group(), dims.active_cp_group().group})
    if (group != nullptr) {
      sequence_groups_.push_back(group);
      ranks_of_sequence_ *= group->size();
    }
  if (dims.active_tp_group() != nullptr && dims.etp_group() == nullptr)  // with ETP rows are of all TP ranks
    batch_groups_.push_back(dims.active_tp_group());
  for (Exchange* group : dims.batch_groups)
    if (group->size() > 1) batch_groups_.push_back(group);
}

void RouterLosses::start_step(int64_t tokens, int64_t microbatches) {
  tokens_ = static_cast<double>(tokens);
  microbatches_ = static_cast<double>(microbatches);
  forwards_ = 0;
  sent_.reset();
}

// Returns d(sequence_aux_loss) / dp of each sequence's tokens: [sequences, experts].
Tensor RouterLosses::sequence_factors(const Tensor& logits, const Tensor& scores, int64_t sequences) const {
  const Tensor no_bias = at::zeros({unbiased_.experts}, scores.options().dtype(at::kFloat));
  const Tensor best = route_tokens(logits, no_bias, unbiased_).choices.to(at::kLong);
  const Tensor chosen = at::zeros_like(scores, scores.options().dtype(at::kBool)).scatter_(1, best, true);
  const Tensor counts = chosen.view({sequences, -1, unbiased_.experts}).sum(1);
  sum_over(sequence_groups_, counts);
  const int64_t tokens_of_sequence = scores.size(0) / sequences * ranks_of_sequence_;
  const auto length = static_cast<double>(tokens_of_sequence);
  const double share =
      static_cast<double>(unbiased_.experts) / (static_cast<double>(unbiased_.top_k) * length);
  return counts.to(scores.scalar_type()).mul_(coefficients_.sequence * share / tokens_);
}

// Returns d(global_aux_loss) / dp of the microbatch's tokens: [1, experts].
Tensor RouterLosses::global_factors(const Tensor& scores, const Tensor& expert_rows) {
  const Tensor counts = expert_rows.to(at::kLong, /*non_blocking=*/false, /*copy=*/true);
  sum_over(batch_groups_, counts);
  sent_ = sent_.defined() ? sent_ + counts : counts;
  forwards_ += 1;
  const double tokens_so_far = tokens_ / microbatches_ * forwards_;
  return sent_.to(scores.scalar_type())
      .mul_(coefficients_.global * static_cast<double>(unbiased_.experts) / tokens_so_far / tokens_)
      .unsqueeze(0);
}

void RouterLosses::record(const char* name, const Tensor& loss, LayerMetrics& metrics) const {
  using enum LayerMetrics::Reduction;
  metrics.record(fmt::format("loss_metrics/{}", name), kSum, loss);
  metrics.record(fmt::format("experts/{}/{}", name, block_), kSum, loss);
}

std::shared_ptr<const kernels::RouterLossGradient> RouterLosses::count(const Tensor& logits,
                                                                       const Tensor& scores,
                                                                       const Tensor& expert_rows,
                                                                       int64_t sequences,
                                                                       LayerMetrics* metrics) {
  const at::NoGradGuard no_grad;
  auto gradient = std::make_shared<kernels::RouterLossGradient>();
  Tensor of_sequences, of_batch;
  if (coefficients_.sequence > 0) of_sequences = sequence_factors(logits, scores, sequences);
  if (coefficients_.global > 0) of_batch = global_factors(scores, expert_rows);
  gradient->of_probabilities = !of_batch.defined()       ? of_sequences
                               : !of_sequences.defined() ? of_batch
                                                         : of_sequences + of_batch;
  gradient->z_loss = coefficients_.z / tokens_;
  if (metrics == nullptr) return gradient;
  if (coefficients_.z > 0)
    record("router_z_loss", logits.to(scores.scalar_type()).logsumexp(1).square().sum() * gradient->z_loss,
           *metrics);
  if (!gradient->of_probabilities.defined()) return gradient;
  const Tensor probabilities =
      unbiased_.score == ScoreFunction::kSoftmax ? scores : scores / scores.sum(1, /*keepdim=*/true);
  const Tensor sums = probabilities.view({sequences, -1, unbiased_.experts}).sum(1);
  if (of_sequences.defined()) record("sequence_aux_loss", (sums * of_sequences).sum(), *metrics);
  if (of_batch.defined()) record("global_aux_loss", (sums * of_batch).sum(), *metrics);
  return gradient;
}

}  // namespace hyperion::models
