#include "models/parts/experts/moe.h"

#include <vector>

#include "models/layers/linear_node.h"
#include "models/layers/sequence_exchange.h"

namespace hyperion::models {
namespace {

// Returns how many rows each expert gets from each slice, [slices * experts], if each of `ranks` chooses by
// balanced_choices() for its `tokens`, without asking a device.
std::vector<int64_t> balanced_counts(int64_t tokens, int64_t ranks, int64_t slices,
                                     const RoutingOptions& options) {
  // Returns the rows of an expert from all tokens before `end`, one rank's after another's.
  const auto rows_before = [&](int64_t end, int64_t expert) {
    const auto rows_of_rank = [&](int64_t first_tokens) {
      return (first_tokens * options.top_k + options.experts - 1 - expert) / options.experts;
    };
    return end / tokens * rows_of_rank(tokens) + rows_of_rank(end % tokens);
  };
  std::vector<int64_t> counts;
  for (int64_t slice = 0; slice < slices; ++slice)
    for (int64_t expert = 0; expert < options.experts; ++expert)
      counts.push_back(rows_before(first_token_of_slice(ranks * tokens, slice + 1, slices), expert) -
                       rows_before(first_token_of_slice(ranks * tokens, slice, slices), expert));
  return counts;
}

// Returns how many rows each expert gets, int64 [experts].
at::Tensor rows_of_experts(const Dispatch& dispatch) {
  if (dispatch.slices == 1) return dispatch.expert_rows;
  return dispatch.expert_rows.view({dispatch.slices, -1}).sum(0);
}

}  // namespace

MoE::MoE(const PartParameters& parameters, const ModelArgs& args, const ParallelDims& dims)
    : FeedForwardPart(parameters),
      etp_group_(dims.etp_group()),
      ep_group_(dims.active_ep_group()),
      ep_nodes_(dims.ep_nodes),
      slices_(ep_group_ != nullptr ? dims.expert_slices : 1),
      routing_(args.experts),
      forces_balance_(args.experts.force_load_balance),
      gate_(parameters.linear("moe.router.gate")),
      experts_(parameters, args, dims),
      balance_(std::make_shared<ExpertBalance>()) {
  if (args.experts.num_shared_experts >
      0)  // with ETP, MoE communicates for the shared experts, which get no dims
    shared_.emplace(parameters, "moe.shared_experts", args.activation,
                    etp_group_ != nullptr ? ParallelDims{} : dims);
  balance_->bias = parameters.at("moe.expert_bias");
  balance_->counts_local_tokens = etp_group_ == nullptr;
  balance_->coefficient = args.experts.load_balance_coeff;
  if (const std::string& fqn = balance_->bias->fqn; args.experts.losses.any())
    balance_->losses = std::make_shared<RouterLosses>(fqn.substr(0, fqn.find(".moe.")), args.experts, dims);
}

std::vector<Linear*> MoE::linears() {
  return shared_ ? shared_->linears() : std::vector<Linear*>();
}

int64_t MoE::consumers() const {
  // Gate, experts and shared experts read it. With ETP the shared experts read the experts' gathered tensor.
  return 2 + (shared_ && etp_group_ == nullptr ? shared_->consumers() : 0);
}

MoE::PendingDispatch MoE::start_dispatch(const kernels::RoutedTokens& routed, std::optional<int64_t> unit,
                                         const BlockRun& run) const {
  if (run.recomputes()) return {*run.routing};
  const int64_t tokens = routed.scores.size(0);
  const at::Tensor choices = gather_over_ranks(routed.choices, etp_group_);
  const auto count_tokens = [&](const Dispatch& dispatch) {
    if (run.counts_tokens && (balance_->coefficient > 0 || run.metrics != nullptr))
      balance_->counts.add_(rows_of_experts(dispatch));
  };
  if (ep_nodes_.nodes != nullptr) {
    NodeCounts counts(choices, routing_.experts, routed.scores.scalar_type(), ep_nodes_, forces_balance_,
                      unit, slices_);
    PendingDispatch pending{{counts.dispatch(), {}}};
    count_tokens(*pending.routing.dispatch);
    pending.node_counts.emplace(std::move(counts));
    return pending;
  }
  const bool known = forces_balance_ && (ep_group_ != nullptr || !unit);
  const RowCounts counts = ep_group_ != nullptr || known
                               ? RowCounts::kOnDevice  // until CountsExchange::wait()
                           : unit ? RowCounts::kPadded
                                  : RowCounts::kOnHost;
  auto dispatch = std::make_shared<Dispatch>(
      dispatch_tokens(choices, routing_.experts, counts, unit.value_or(kernels::kGroupUnit), slices_));
  if (known) dispatch->counts = balanced_counts(tokens, choices.size(0) / tokens, slices_, routing_);
  count_tokens(*dispatch);
  PendingDispatch pending{{dispatch, {}}};
  if (ep_group_ != nullptr) pending.counts.emplace(std::move(dispatch), *ep_group_, forces_balance_, unit);
  return pending;
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

at::Tensor MoE::sum_of_routed(const at::Tensor& x, const at::Tensor& weights, PendingDispatch& pending,
                              const std::function<at::Tensor()>& shared, const BlockRun& run) const {
  KeptRouting& routing = pending.routing;
  const auto keep = [&] {
    if (run.routing != nullptr && !run.recomputes()) *run.routing = routing;
  };
  if (ep_group_ == nullptr) {
    keep();
    return experts_.forward(x, weights, shared(), routing, run);
  }
  if (ep_nodes_.nodes == nullptr) {  // the host waits for the counts here
    DispatchExchange rows = experts_.send(x, weights, routing, std::move(pending.counts), run);
    keep();
    const at::Tensor added = shared();
    return experts_.forward(std::move(rows), weights, added, run);
  }
  NodeDispatchExchange tokens(x, weights, routing, std::move(pending.node_counts), ep_nodes_,
                              run);  // or here
  const at::Tensor added = shared();
  CombineExchange results(routing, at::Tensor(), *ep_nodes_.nodes, run, tokens.level());
  std::vector<std::shared_ptr<const KeptRouting>> in_node;
  for (size_t slice = 0; slice < routing.exchanges.size(); ++slice) {
    NodeDispatchExchange::Received received = tokens.wait(slice);
    DispatchExchange rows =
        experts_.send(received.x, received.weights, received.routing, {}, run, received.level);
    in_node.push_back(std::make_shared<const KeptRouting>(received.routing));
    results.send(experts_.forward(std::move(rows), received.weights, at::Tensor(), run));
  }
  routing.in_node = std::move(in_node);
  keep();
  return results.sum(added);
}

at::Tensor MoE::forward(const ops::SumAndNorm& h, const BlockRun& run) const {
  const auto rows_of = [](const at::Tensor& x) { return x.flatten(0, -2); };
  const at::Tensor logits = rows_of(column_linear(h.normed[0], {&gate_}, run)[0]);
  const kernels::RoutedTokens routed = route(logits.detach(), run);
  const at::Tensor& scores = routed.scores;
  PendingDispatch pending = start_dispatch(routed, experts_.unit_of_rows(h.normed[1]), run);
  if (balance_->losses != nullptr && run.counts_tokens)
    pending.routing.losses =
        balance_->losses->count(logits.detach(), scores, rows_of_experts(*pending.routing.dispatch),
                                h.normed[0].size(0), run.metrics);
  const int64_t tokens = scores.size(0), first = etp_group_ == nullptr ? 0 : etp_group_->rank() * tokens;
  const at::Tensor local_choices = pending.routing.dispatch->choices.narrow(0, first, tokens);
  const at::Tensor weights = gather_over_ranks(
      routing_weights(logits, scores, local_choices, routing_, pending.routing.losses), etp_group_);
  const at::Tensor x = gather_over_ranks(rows_of(h.normed[1]), etp_group_);
  const auto shared = [&] {
    if (!shared_) return at::Tensor();
    return rows_of(
        shared_->forward(etp_group_ == nullptr ? at::TensorList(h.normed).slice(2) : at::TensorList(x), run));
  };
  const at::Tensor terms = sum_of_routed(x, weights, pending, shared, run);
  const at::Tensor sum = sum_over_ranks(terms, etp_group_, /*computes=*/!run.recomputes());
  return ops::residual_sum(h.sum, sum.view(h.sum.sizes()), run);
}

}  // namespace hyperion::models
