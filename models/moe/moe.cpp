#include "models/moe/moe.h"

#include <fmt/format.h>

#include "models/block_linear.h"
#include "models/layers/linear_node.h"

namespace hyperion::models {
namespace {

constexpr const char* kSharedExperts = "moe.shared_experts";

}  // namespace

MoE::MoE(const ModelArgs& args, int64_t layer, const ParallelDims& dims)
    : routing_(args),
      forces_balance_(args.force_load_balance),
      gate_(make_parameter(fmt::format("layers.{}.moe.router.gate.weight", layer),
                           {args.num_experts, args.dim},
                           Init::truncated_normal(residual_std(args, layer), -2.0, 2.0))),
      experts_(args, layer),
      balance_(std::make_shared<ExpertBalance>()) {
  if (args.num_shared_experts > 0)
    shared_.emplace(args, layer, kSharedExperts, args.moe_hidden_dim * args.num_shared_experts, dims);
  balance_->bias =
      make_parameter(fmt::format("layers.{}.moe.expert_bias", layer), {args.num_experts}, Init::normal(0));
  balance_->coefficient = args.load_balance_coeff;
}

std::vector<ParameterPtr> MoE::parameters() const {
  std::vector<ParameterPtr> all = experts_.parameters();
  all.push_back(gate_.weight());
  if (shared_)
    for (const ParameterPtr& parameter : shared_->parameters()) all.push_back(parameter);
  return all;
}

std::vector<Linear*> MoE::linears() {
  return shared_ ? shared_->linears() : std::vector<Linear*>();
}

int64_t MoE::readers() const {
  return 2 + (shared_ ? shared_->readers() : 0);  // gate, experts
}

// Kept for a run that is repeated: experts whose scores are nearly equal could change places.
std::shared_ptr<const Dispatch> MoE::dispatch(const at::Tensor& scores, const BlockRun& run) const {
  if (run.recomputes()) return run.routing->dispatch;
  const at::Tensor choices = forces_balance_ ? balanced_choices(scores, routing_)
                                             : choose_experts(scores, balance_->bias->weight, routing_);
  auto made = std::make_shared<const Dispatch>(dispatch_tokens(choices, routing_.experts));
  if (run.routing != nullptr) run.routing->dispatch = made;
  if (run.counts_tokens && (balance_->coefficient > 0 || run.metrics != nullptr))
    balance_->counts.add_(made->expert_rows);
  return made;
}

at::Tensor MoE::forward(const ops::SumAndNorm& h, const BlockRun& run) const {
  const auto rows_of = [](const at::Tensor& x) { return x.flatten(0, -2); };
  const at::Tensor logits = rows_of(column_linear(h.normed[0], {&gate_}, run)[0]);
  const at::Tensor scores = expert_scores(logits.detach(), routing_);
  const std::shared_ptr<const Dispatch> sent = dispatch(scores, run);
  const at::Tensor weights = routing_weights(logits, scores, sent->choices, routing_);
  at::Tensor shared;
  if (shared_) shared = rows_of(shared_->of_norm(at::TensorList(h.normed).slice(2), run));
  const at::Tensor all = experts_.forward(rows_of(h.normed[1]), weights, shared, sent, run);
  return ops::residual_sum(h.sum, all.view(h.sum.sizes()), run);
}

}  // namespace hyperion::models
