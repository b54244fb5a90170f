#include "models/parts/experts/expert_exchange.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include "base/failpoint.h"
#include "models/layers/activation_checkpoint.h"
#include "models/layers/node_state.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using OptionalRows = std::optional<Tensor>;  // autograd takes no undefined tensors

int64_t sum_of(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

Tensor exchange_rows(const Tensor& rows, std::span<const int64_t> to, std::span<const int64_t> from,
                     Exchange& ep_group) {
  const Tensor out = at::empty({sum_of(from), rows.size(1)}, rows.options());
  ep_group.start_all_to_all(out, rows.contiguous(), from, to).wait();
  return out;
}
Tensor to_experts(const Tensor& rows, const ExpertExchange& exchange, Exchange& ep_group) {
  return exchange_rows(rows, exchange.sent, exchange.received, ep_group);
}
Tensor from_experts(const Tensor& rows, const ExpertExchange& exchange, Exchange& ep_group) {
  failpoint("step.rows");
  return exchange_rows(rows, exchange.received, exchange.sent, ep_group);
}

// The state of a node between forward and backward.
struct SavedExchange : torch::CustomClassHolder {
  KeptRouting routing;
  Exchange* ep_group = nullptr;
  Tensor rows;  // the node's input, or the rows that came back; defined if the gradient of weights reads them
  Tensor weights;  // may be undefined
};

struct RowsForExpertsFunction : Function<RowsForExpertsFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const OptionalRows& given_weights,
                        const KeptRouting& routing, Exchange* ep_group, SelectiveCheckpoint* selective) {
    const Tensor weights = given_weights.value_or(Tensor());
    SavedExchange saved;
    saved.routing = routing;
    saved.ep_group = ep_group;
    saved.weights = weights;
    if (weights.defined()) saved.rows = x;
    keep_state(context, std::move(saved));
    return saved_or_computed(selective, /*save=*/true, [&] {
      return variable_list{
          to_experts(gather_rows(x, *routing.dispatch, weights), *routing.exchange, *ep_group)};
    })[0];
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = kept_state<SavedExchange>(context);
    const Dispatch& dispatch = *saved->routing.dispatch;
    const Tensor grad_rows = from_experts(grads[0], *saved->routing.exchange, *saved->ep_group);
    Tensor grad_weights;
    if (saved->weights.defined())
      grad_weights = gradient_of_weights(grad_rows, gather_rows(saved->rows, dispatch, Tensor()), dispatch);
    saved->rows.reset();
    return {sum_rows(grad_rows, dispatch, saved->weights), grad_weights, Tensor(), Tensor(), Tensor()};
  }
};

struct SumOfExpertsFunction : Function<SumOfExpertsFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& outputs, const OptionalRows& given_weights,
                        const OptionalRows& given_shared, const KeptRouting& routing, Exchange* ep_group,
                        const BlockRun& run) {
    const Tensor weights = given_weights.value_or(Tensor()), shared = given_shared.value_or(Tensor());
    const Dispatch& dispatch = *routing.dispatch;
    Tensor rows;  // [tokens * k, dim]
    if (weights.defined() || !run.recomputes())
      rows = saved_or_computed(run.selective, weights.defined(), [&] {
        return variable_list{from_experts(outputs, *routing.exchange, *ep_group)};
      })[0];
    SavedExchange saved;
    saved.routing = routing;
    saved.ep_group = ep_group;
    saved.weights = weights;
    if (weights.defined()) saved.rows = rows;
    keep_state(context, std::move(saved));
    context->saved_data["adds"] = shared.defined();
    if (run.recomputes()) return at::empty({dispatch.choices.size(0), outputs.size(1)}, outputs.options());
    return sum_rows(rows, dispatch, weights, shared);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = kept_state<SavedExchange>(context);
    const Dispatch& dispatch = *saved->routing.dispatch;
    const Tensor grad = grads[0].contiguous();
    const Tensor grad_outputs =
        to_experts(gather_rows(grad, dispatch, saved->weights), *saved->routing.exchange, *saved->ep_group);
    Tensor grad_weights;
    if (saved->weights.defined())
      grad_weights = gradient_of_weights(gather_rows(grad, dispatch, Tensor()), saved->rows, dispatch);
    saved->rows.reset();
    return {grad_outputs, grad_weights, context->saved_data["adds"].toBool() ? grads[0] : Tensor(),
            Tensor(),     Tensor(),     Tensor()};
  }
};

std::vector<int64_t> on_host(const Tensor& counts) {
  const Tensor host = counts.cpu();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

// Moves the tensors of a dispatch to a device in one copy.
void copy_to(at::Device device, Dispatch& dispatch) {
  std::vector tensors = {&dispatch.choices, &dispatch.assignments, &dispatch.tokens, &dispatch.rows,
                         &dispatch.expert_rows};
  const bool padded = dispatch.ends.defined();
  if (padded) tensors.insert(tensors.end(), {&dispatch.ends, &dispatch.padding});
  std::vector<Tensor> parts;
  for (const Tensor* tensor : tensors) parts.push_back(tensor->flatten().to(at::kLong));
  const Tensor copy = at::cat(parts).to(device, /*non_blocking=*/true);
  int64_t first = 0;
  for (Tensor* tensor : tensors) {
    *tensor = copy.narrow(0, first, tensor->numel()).view(tensor->sizes());
    first += tensor->numel();
  }
  if (padded) dispatch.ends = dispatch.ends.to(at::kInt);  // the dtype of the grouped product
}

}  // namespace

ExpertExchange plan_exchange(std::span<const int64_t> counts, std::span<const int64_t> received, int ranks,
                             at::Device device, std::optional<int64_t> unit) {
  const size_t local_experts = counts.size() / static_cast<size_t>(ranks);
  ExpertExchange exchange;
  for (size_t first = 0; first < counts.size(); first += local_experts) {
    exchange.sent.push_back(sum_of(counts.subspan(first, local_experts)));
    exchange.received.push_back(sum_of(received.subspan(first, local_experts)));
  }
  const Tensor choices = at::empty({sum_of(received), 1}, at::kLong);
  int64_t* choice = choices.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < received.size(); ++i)
    choice = std::fill_n(choice, received[i], static_cast<int64_t>(i % local_experts));
  auto experts = std::make_shared<Dispatch>(dispatch_tokens(choices, static_cast<int64_t>(local_experts),
                                                            unit ? RowCounts::kPadded : RowCounts::kOnHost,
                                                            unit.value_or(kernels::kGroupUnit)));
  if (!device.is_cpu()) copy_to(device, *experts);
  exchange.experts = std::move(experts);
  return exchange;
}

CountsExchange::CountsExchange(std::shared_ptr<Dispatch> dispatch, Exchange& ep_group, bool equal,
                               std::optional<int64_t> unit)
    : dispatch_(std::move(dispatch)),
      ep_size_(ep_group.size()),
      unit_(unit),
      received_(at::empty_like(dispatch_->expert_rows)) {
  const int64_t local_experts = received_.numel() / ep_size_;
  if (equal) {
    // The host knows the counts and does not wait.
    received_ =
        at::tensor(
            at::ArrayRef<int64_t>(dispatch_->counts).slice(ep_group.rank() * local_experts, local_experts))
            .repeat({ep_size_});
    return;
  }
  const std::vector<int64_t> rows(static_cast<size_t>(ep_size_), local_experts);
  pending_ = ep_group.start_all_to_all(received_, dispatch_->expert_rows, rows, rows);
}

std::shared_ptr<const ExpertExchange> CountsExchange::wait() {
  pending_.wait();
  const at::Device device = dispatch_->expert_rows.device();
  if (received_.device() != device) {  // the host knows the counts
    const std::vector<int64_t> received = on_host(received_);
    return std::make_shared<const ExpertExchange>(
        plan_exchange(dispatch_->counts, received, ep_size_, device, unit_));
  }
  const std::vector<int64_t> both = on_host(at::cat({dispatch_->expert_rows, received_}));
  const auto [sent, received] =
      std::pair(std::span(both).first(both.size() / 2), std::span(both).subspan(both.size() / 2));
  dispatch_->counts.assign(sent.begin(), sent.end());
  return std::make_shared<const ExpertExchange>(
      plan_exchange(sent, received, ep_size_, received_.device(), unit_));
}

Tensor rows_for_experts(const Tensor& x, const Tensor& weights, const KeptRouting& routing,
                        Exchange& ep_group, const BlockRun& run) {
  return RowsForExpertsFunction::apply(x, optional_of(weights), routing, &ep_group, run.selective);
}

Tensor sum_of_experts(const Tensor& outputs, const Tensor& weights, const Tensor& shared,
                      const KeptRouting& routing, Exchange& ep_group, const BlockRun& run) {
  return SumOfExpertsFunction::apply(outputs, optional_of(weights), optional_of(shared), routing, &ep_group,
                                     run);
}

}  // namespace hyperion::models
