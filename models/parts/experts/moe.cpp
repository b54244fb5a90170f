#include "models/parts/experts/moe.h"

#include <algorithm>
#include <vector>

#include "models/layers/linear_node.h"
#include "models/layers/sequence_exchange.h"

namespace hyperion::models {
namespace {

// How many rows each expert gets of balanced_choices(), from each of `deals` ranks: known without a device.
std::vector<int64_t> balanced_counts(int64_t tokens, int64_t deals, const RoutingOptions& options) {
  const int64_t slots = tokens * options.top_k, least = slots / options.experts;
  std::vector<int64_t> counts(static_cast<size_t>(options.experts), deals * least);
  std::fill_n(counts.begin(), slots % options.experts, deals * (least + 1));
  return counts;
}

}  // namespace

MoE::MoE(const PartParameters& parameters, const ModelArgs& args, const ParallelDims& dims)
    : FeedForwardPart(parameters),
      tensor_(dims.expert_tensor_group()),
      ranks_(dims.expert_group()),
      routing_(args),
      forces_balance_(args.force_load_balance),
      gate_(parameters.linear("moe.router.gate")),
      experts_(parameters, args, dims),
      balance_(std::make_shared<ExpertBalance>()) {
  if (args.num_shared_experts > 0)  // without dims what it reads and makes is exchanged here
    shared_.emplace(parameters, "moe.shared_experts", args.activation,
                    tensor_ != nullptr ? ParallelDims{} : dims);
  balance_->bias = parameters.at("moe.expert_bias");
  balance_->counts_own_part = tensor_ == nullptr;
  balance_->coefficient = args.load_balance_coeff;
}

std::vector<Linear*> MoE::linears() {
  return shared_ ? shared_->linears() : std::vector<Linear*>();
}

int64_t MoE::consumers() const {
  // Gate, experts, shared experts; the gathered norm is one tensor.
  return 2 + (shared_ && tensor_ == nullptr ? shared_->consumers() : 0);
}

// Kept for a run that is repeated: experts whose scores are nearly equal could change places.
MoE::Sending MoE::start_dispatch(const kernels::RoutedTokens& routed, std::optional<int64_t> unit,
                                 const BlockRun& run) const {
  if (run.recomputes()) return {*run.routing};
  const int64_t tokens = routed.scores.size(0);
  const at::Tensor choices = gather_over_ranks(routed.choices, tensor_);
  const bool known = forces_balance_ && (ranks_ != nullptr || !unit);
  const RowCounts counts = ranks_ != nullptr || known ? RowCounts::kOnDevice  // until they are exchanged
                           : unit                     ? RowCounts::kPadded
                                                      : RowCounts::kOnHost;
  auto made = std::make_shared<Dispatch>(
      dispatch_tokens(choices, routing_.experts, counts, unit.value_or(kernels::kGroupUnit)));
  if (known) made->counts = balanced_counts(tokens, choices.size(0) / tokens, routing_);
  if (run.counts_tokens && (balance_->coefficient > 0 || run.metrics != nullptr))
    balance_->counts.add_(made->expert_rows);
  Sending sending{{made, {}}};
  if (ranks_ != nullptr) sending.counts.emplace(std::move(made), *ranks_, forces_balance_, unit);
  return sending;
}

KeptRouting MoE::finish(Sending sending, const BlockRun& run) {
  if (sending.counts) sending.routing.exchange = sending.counts->wait();
  if (run.routing != nullptr && !run.recomputes()) *run.routing = sending.routing;
  return sending.routing;
}

kernels::RoutedTokens MoE::route(const at::Tensor& logits, const BlockRun& run) const {
  if (!forces_balance_) {
    kernels::RoutedTokens routed = route_tokens(logits, balance_->bias->weight, routing_);
    if (run.recomputes()) routed.choices.reset();
    return routed;
  }
  const at::Tensor scores = expert_scores(logits, routing_);
  return {scores, run.recomputes() ? at::Tensor() : balanced_choices(scores, routing_)};
}

at::Tensor MoE::forward(const ops::SumAndNorm& h, const BlockRun& run) const {
  const auto rows_of = [](const at::Tensor& x) { return x.flatten(0, -2); };
  const at::Tensor logits = rows_of(column_linear(h.normed[0], {&gate_}, run)[0]);
  const kernels::RoutedTokens routed = route(logits.detach(), run);
  const at::Tensor& scores = routed.scores;
  Sending sending = start_dispatch(routed, experts_.unit_of_rows(h.normed[1]), run);
  const int64_t tokens = scores.size(0), first = tensor_ == nullptr ? 0 : tensor_->rank() * tokens;
  const at::Tensor own_choices = sending.routing.dispatch->choices.narrow(0, first, tokens);
  const at::Tensor weights =
      gather_over_ranks(routing_weights(logits, scores, own_choices, routing_), tensor_);
  const at::Tensor x = gather_over_ranks(rows_of(h.normed[1]), tensor_);
  at::Tensor shared;
  if (shared_)
    shared = rows_of(
        shared_->forward(tensor_ == nullptr ? at::TensorList(h.normed).slice(2) : at::TensorList(x), run));
  // After all work that needs no counts: the host waits for them.
  const KeptRouting routing = finish(std::move(sending), run);
  const at::Tensor terms = experts_.forward(x, weights, shared, routing, run);
  const at::Tensor all = sum_over_ranks(terms, tensor_, /*computes=*/!run.recomputes());
  return ops::residual_sum(h.sum, all.view(h.sum.sizes()), run);
}

}  // namespace hyperion::models
