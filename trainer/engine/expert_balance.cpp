#include "trainer/engine/expert_balance.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include "base/failpoint.h"
#include "parallel/comm/trace_range.h"

namespace hyperion::trainer {
namespace {

constexpr std::string_view kExperts = "experts/", kBusiest = "experts/busiest_over_mean",
                           kBusiestExpert = "experts/busiest", kIdlest = "experts/idlest_over_mean",
                           kIdlestExpert = "experts/idlest", kMaxRows = "experts/most_rows_of_a_rank",
                           kWorstLayer = "experts/worst_layer";

// Stacks this rank's token counts: int64 [blocks, experts].
at::Tensor own_counts(const std::vector<models::ExpertBalancePtr>& balances) {
  std::vector<at::Tensor> counts;
  for (const models::ExpertBalancePtr& balance : balances) counts.push_back(balance->counts);
  return at::stack(counts);
}

// Returns, for each block, the rows (fp32) that the expert parallel group `sharing` has sent to this rank.
at::Tensor rows_received(const std::vector<models::ExpertBalancePtr>& balances,
                         parallel::Communicator& sharing) {
  const at::Tensor counts = own_counts(balances);
  sharing.all_reduce_sum(counts);
  const int64_t experts = counts.size(1) / sharing.size();
  return counts.narrow(1, sharing.rank() * experts, experts).sum(1).to(at::kFloat);
}

// Sums the tokens of each expert over all ranks of the stage: int64 [blocks, experts].
at::Tensor global_counts(const std::vector<models::ExpertBalancePtr>& balances,
                         const parallel::FsdpContext& ranks) {
  const at::Tensor all = own_counts(balances);
  std::vector<parallel::Communicator*> groups = {&ranks.shard(), &ranks.replicate()};
  if (balances.front()->counts_local_tokens && ranks.tensor() != nullptr) groups.push_back(ranks.tensor());
  parallel::ReduceChain(std::move(groups)).all_reduce_sum(all);
  return all;
}

}  // namespace

void update_expert_biases(const std::vector<models::ExpertBalancePtr>& balances,
                          const parallel::FsdpContext& ranks, const at::Tensor& skip) {
  std::vector<models::ExpertBalancePtr> updated;
  for (const models::ExpertBalancePtr& balance : balances)
    if (balance->coefficient > 0) updated.push_back(balance);
  if (updated.empty()) return;
  failpoint("step.counts");
  const parallel::TraceRange range("update of expert biases");
  at::NoGradGuard no_grad;
  const at::Tensor all = global_counts(updated, ranks);
  // The sign of mean - count is computed in integers.
  const at::Tensor sign = (all.sum(1, /*keepdim=*/true) - all * all.size(1)).sign().to(at::kFloat);
  const at::Tensor made = 1 - skip.to(sign.device());
  for (size_t i = 0; i < updated.size(); ++i) {
    const at::Tensor step = sign.select(0, static_cast<int64_t>(i)) * updated[i]->coefficient;
    updated[i]->bias->weight.add_((step - step.mean()) * made);
    updated[i]->counts.zero_();
  }
}

void record_expert_loads(const std::vector<models::ExpertBalancePtr>& balances,
                         const parallel::FsdpContext& ranks, parallel::Communicator* expert_ranks,
                         models::LayerMetrics& reported) {
  if (balances.empty()) return;
  at::NoGradGuard no_grad;
  const at::Tensor all = global_counts(balances, ranks).to(at::kFloat);
  const at::Tensor mean = all.mean(1).clamp_min(1);  // a step without tokens has no busiest expert
  const auto [largest, busiest] = all.max(1);
  const auto [fewest, idlest] = all.min(1);
  std::vector<std::pair<std::string_view, at::Tensor>> figures = {{kBusiest, largest / mean},
                                                                  {kBusiestExpert, busiest.to(at::kFloat)},
                                                                  {kIdlest, fewest / mean},
                                                                  {kIdlestExpert, idlest.to(at::kFloat)}};
  if (expert_ranks != nullptr) figures.emplace_back(kMaxRows, rows_received(balances, *expert_ranks));
  for (size_t i = 0; i < balances.size(); ++i) {
    const models::ExpertBalance& balance = *balances[i];
    const std::string& fqn = balance.bias->fqn;  // layers.N.moe.expert_bias
    const std::string block = fqn.substr(0, fqn.find('.', fqn.find('.') + 1));
    for (const auto& [tag, of_blocks] : figures)
      reported.record(fmt::format("{}/{}", tag, block), models::LayerMetrics::Reduction::kMax,
                      of_blocks.select(0, static_cast<int64_t>(i)));
    if (balance.coefficient == 0) balance.counts.zero_();
  }
}

metrics::MetricList keep_worst_block(metrics::MetricList reported) {
  const std::string prefix = fmt::format("{}/layers.", kBusiest);
  std::string worst;
  double largest = -1;
  for (const auto& [tag, value] : reported)
    if (tag.starts_with(prefix) && value > largest) {
      largest = value;
      worst = tag.substr(prefix.size());
    }
  if (worst.empty()) return reported;
  metrics::MetricList kept;
  for (auto& [tag, value] : reported) {
    const size_t of_block = tag.starts_with(kExperts) ? tag.find("/layers.") : tag.npos;
    if (of_block == tag.npos)
      kept.emplace_back(std::move(tag), value);
    else if (tag.substr(of_block + std::string_view("/layers.").size()) == worst)
      kept.emplace_back(tag.substr(0, of_block), value);
  }
  kept.emplace_back(kWorstLayer, std::stod(worst));
  return kept;
}

std::string CollapseWatch::add(const metrics::MetricList& metrics) {
  constexpr int kLasting = 10;
  constexpr double kSmallest = 1.5;  // below, few experts are left to choose among
  const auto value = [&](std::string_view wanted) {
    const auto found = std::ranges::find(metrics, wanted, &metrics::MetricList::value_type::first);
    return found == metrics.end() ? 0.0 : found->second;
  };
  const double busiest = value(kBusiest);
  steps_ = highest_ >= kSmallest && busiest >= 0.9 * highest_ ? steps_ + 1 : 0;
  if (steps_ != kLasting) return "";
  return fmt::format(
      "experts of the worst block, now layers.{:.0f}: in the last {} logged steps the busiest expert has had "
      "more than 0.9 of the tokens that one can have, now {:.2f} times the mean of at most {:.2f}; a few get "
      "every token and the others learn nothing (collapse). model.args.load_balance_coeff ({:g} now) evens "
      "them out, a lower optimizer.lr or more lr_scheduler.warmup_steps delays it: docs/experts.md, Balance",
      value(kWorstLayer), kLasting, busiest, highest_, coefficient_);
}

}  // namespace hyperion::trainer
