#include "models/parts/experts/expert_exchange.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "base/failpoint.h"
#include "models/layers/activation_checkpoint.h"
#include "models/layers/node_state.h"

namespace hyperion::models {
using at::Tensor;

// Rows on their way to the experts in forward, then their gradients on the way back.
struct RowsInFlight {
  Tensor gathered{};   // the rows to send, before they are sent
  Tensor gradients{};  // the gradients that come back, valid after `pending`
  Pending pending{};
};

namespace {

using OptionalRows = std::optional<Tensor>;  // autograd takes no undefined tensors

int64_t sum_of(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Returns a tensor of the graph whose elements are never read.
Tensor without_elements(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty({1}, options).expand(sizes);
}

// Starts the exchange of rows. The blocks of the result are valid after `pending`.
Tensor start_rows(const Tensor& rows, int64_t out_rows, std::span<const RowBlock> to,
                  std::span<const RowBlock> from, Exchange& ep_group, Pending& pending) {
  const Tensor out = at::empty({out_rows, rows.size(1)}, rows.options());
  pending = ep_group.start_block_exchange(out, rows.contiguous(), from, to);
  return out;
}
Tensor to_experts(const Tensor& rows, const ExpertExchange& exchange, Exchange& ep_group, Pending& pending) {
  const Tensor received = start_rows(rows, exchange.received_rows, exchange.sent_blocks,
                                     exchange.received_blocks, ep_group, pending);
  std::vector<Tensor> padding;  // filled while rows travel
  for (const auto& [first, count] : exchange.padding) padding.push_back(received.narrow(0, first, count));
  if (!padding.empty()) at::_foreach_zero_(padding);
  return received;
}
Tensor from_experts(const Tensor& rows, const ExpertExchange& exchange, Exchange& ep_group,
                    Pending& pending) {
  failpoint("step.rows");
  return start_rows(rows, sum_of(exchange.sent), exchange.received_blocks, exchange.sent_blocks, ep_group,
                    pending);
}

// The state of SendRowsFunction and of ReceiveRowsFunction.
struct SavedRows : torch::CustomClassHolder {
  KeptRouting routing;
  Exchange* ep_group = nullptr;
  NodeLevel level;
  std::shared_ptr<RowsInFlight> in_flight;
  Tensor x, weights;  // of SendRowsFunction; x is defined if weights are, whose gradient reads it
  std::vector<int64_t> sizes;
  at::TensorOptions options;
};

// Sends rows of x. Other nodes run before ReceiveRowsFunction waits for them. In backward gradients take the
// same way back: ReceiveRowsFunction starts their exchange, and this node waits for it.
struct SendRowsFunction : Function<SendRowsFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const OptionalRows& given_weights,
                        const KeptRouting& routing, Exchange* ep_group, const NodeLevel& level,
                        const std::shared_ptr<RowsInFlight>& in_flight, SelectiveCheckpoint* selective) {
    SavedRows saved;
    saved.routing = routing;
    saved.level = level;
    saved.sizes = x.sizes().vec();
    saved.options = x.options();
    saved.in_flight = in_flight;
    saved.weights = given_weights.value_or(Tensor());
    if (saved.weights.defined()) saved.x = x;
    keep_state(context, std::move(saved));
    return saved_or_computed(selective, /*save=*/true, [&] {
      return variable_list{to_experts(std::exchange(in_flight->gathered, {}), *routing.exchange, *ep_group,
                                      in_flight->pending)};
    })[0];
  }

  static variable_list backward(AutogradContext* context, const variable_list& /*grads*/) {
    const auto saved = kept_state<SavedRows>(context);
    const Dispatch& dispatch = *saved->routing.dispatch;
    saved->in_flight->pending.wait();
    const Tensor grad_rows = std::exchange(saved->in_flight->gradients, {});
    Tensor grad_weights;
    if (saved->weights.defined())
      grad_weights = gradient_of_weights(grad_rows, gather_rows(saved->x, dispatch, Tensor()), dispatch);
    saved->x.reset();
    return {gradient_of_x(*saved, grad_rows), grad_weights, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }

  static Tensor gradient_of_x(const SavedRows& saved, const Tensor& grad_rows) {
    const Dispatch& dispatch = *saved.routing.dispatch;
    if (saved.level.sums == nullptr) return sum_rows(grad_rows, dispatch, saved.weights);
    if (!saved.level.packs)
      return sum_packed_rows(grad_rows, dispatch, Tensor(), saved.sizes[1],
                             saved.options.dtype().toScalarType());
    saved.level.sums->gradients = pack_row_sums(grad_rows, dispatch, saved.weights);
    return without_elements(saved.sizes, saved.options);
  }
};

struct ReceiveRowsFunction : Function<ReceiveRowsFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& rows, const KeptRouting& routing,
                        Exchange* ep_group, const NodeLevel& level,
                        const std::shared_ptr<RowsInFlight>& in_flight) {
    SavedRows saved;
    saved.routing = routing;
    saved.ep_group = ep_group;
    saved.level = level;
    saved.in_flight = in_flight;
    keep_state(context, std::move(saved));
    in_flight->pending.wait();
    return rows;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = kept_state<SavedRows>(context);
    const NodeLevel& level = saved->level;
    const Tensor packed =
        level.sums != nullptr && !level.packs ? std::exchange(level.sums->gradients, {}) : Tensor();
    saved->in_flight->gradients = from_experts(packed.defined() ? packed : grads[0], *saved->routing.exchange,
                                               *saved->ep_group, saved->in_flight->pending);
    return {grads[0], Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// The state of SumOfExpertsFunction between forward and backward.
struct SavedSum : torch::CustomClassHolder {
  KeptRouting routing;
  Exchange* ep_group = nullptr;
  Tensor rows;     // the rows that came back; defined if the gradient of weights reads them
  Tensor weights;  // may be undefined
};

struct SumOfExpertsFunction : Function<SumOfExpertsFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& outputs, const OptionalRows& given_weights,
                        const OptionalRows& given_shared, const KeptRouting& routing, Exchange* ep_group,
                        const NodeLevel& level, const BlockRun& run) {
    const Tensor weights = given_weights.value_or(Tensor()), shared = given_shared.value_or(Tensor());
    const Dispatch& dispatch = *routing.dispatch;
    const bool unpacks = level.sums != nullptr && !level.packs;
    Tensor rows;  // [tokens * k, dim], or packed
    if (weights.defined() || !run.recomputes())
      rows = saved_or_computed(run.selective, weights.defined(), [&] {
        Pending pending;
        const Tensor sent = unpacks ? std::exchange(level.sums->results, {}) : outputs;
        const Tensor returned = from_experts(sent, *routing.exchange, *ep_group, pending);
        pending.wait();
        return variable_list{returned};
      })[0];
    SavedSum saved;
    saved.routing = routing;
    saved.ep_group = ep_group;
    saved.weights = weights;
    if (weights.defined()) saved.rows = rows;
    keep_state(context, std::move(saved));
    context->saved_data["adds"] = shared.defined();
    const int64_t tokens = dispatch.choices.size(0), n = outputs.size(1);
    if (run.recomputes()) return at::empty({tokens, n}, outputs.options());
    if (level.sums == nullptr) return sum_rows(rows, dispatch, weights, shared);
    if (unpacks) return sum_packed_rows(rows, dispatch, shared, n, outputs.scalar_type());
    level.sums->results = pack_row_sums(rows, dispatch, weights);
    return without_elements({tokens, n}, outputs.options());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = kept_state<SavedSum>(context);
    const Dispatch& dispatch = *saved->routing.dispatch;
    const Tensor grad = grads[0].contiguous();
    Pending pending;
    const Tensor grad_outputs = to_experts(gather_rows(grad, dispatch, saved->weights),
                                           *saved->routing.exchange, *saved->ep_group, pending);
    Tensor grad_weights;
    if (saved->weights.defined())
      grad_weights = gradient_of_weights(gather_rows(grad, dispatch, Tensor()), saved->rows, dispatch);
    pending.wait();
    saved->rows.reset();
    return {grad_outputs, grad_weights, context->saved_data["adds"].toBool() ? grads[0] : Tensor(),
            Tensor(),     Tensor(),     Tensor(),
            Tensor()};
  }
};

// Copies of counts wait for nothing but the counts. A process uses one GPU.
const DeviceStream& copy_stream(at::Device device) {
  static const DeviceStream stream = DeviceStream::from_pool(device, /*high_priority=*/true);
  return stream;
}

std::span<const int64_t> numbers_of(const Tensor& counts) {
  return {counts.const_data_ptr<int64_t>(), static_cast<size_t>(counts.numel())};
}

}  // namespace

ExpertExchange plan_exchange(std::span<const int64_t> counts, std::span<const int64_t> received, int ranks,
                             std::optional<int64_t> unit) {
  const size_t local_experts = counts.size() / static_cast<size_t>(ranks);
  ExpertExchange exchange;
  int64_t sent = 0;
  for (size_t first = 0; first < counts.size(); first += local_experts) {
    exchange.sent.push_back(sum_of(counts.subspan(first, local_experts)));
    exchange.received.push_back(sum_of(received.subspan(first, local_experts)));
  }
  for (const int64_t rows : counts) {
    exchange.sent_blocks.push_back({sent, rows});
    sent += rows;
  }
  exchange.received_blocks.resize(received.size());
  int64_t& end = exchange.received_rows;
  for (size_t expert = 0; expert < local_experts; ++expert) {
    const int64_t begin = end;
    for (size_t block = expert; block < received.size(); block += local_experts) {
      exchange.received_blocks[block] = {end, received[block]};
      end += received[block];
    }
    if (!unit) continue;
    const int64_t rows = end - begin, padded = std::max<int64_t>((rows + *unit - 1) / *unit, 1) * *unit;
    if (padded > rows) exchange.padding.push_back({end, padded - rows});
    end = begin + padded;
  }
  return exchange;
}

std::vector<int64_t> ends_of_groups(const ExpertExchange& exchange) {
  const size_t local_experts = exchange.received_blocks.size() / exchange.received.size();
  std::vector<int64_t> ends;  // a group ends where the next one begins
  for (size_t expert = 1; expert < local_experts; ++expert)
    ends.push_back(exchange.received_blocks[expert].first);
  ends.push_back(exchange.received_rows);
  return ends;
}

Dispatch groups_of_received(const ExpertExchange& exchange, std::optional<int64_t> unit, at::Device device) {
  const std::vector<int64_t> ends = ends_of_groups(exchange);
  Dispatch groups;
  if (!unit) {
    for (int64_t before = 0; const int64_t end : ends)
      groups.counts.push_back(end - std::exchange(before, end));
    return groups;
  }
  const Tensor on_host = at::empty({static_cast<int64_t>(ends.size())},
                                   at::TensorOptions(at::kInt).pinned_memory(device.is_cuda()));
  std::ranges::copy(ends, on_host.mutable_data_ptr<int>());
  groups.ends = on_host.to(device, /*non_blocking=*/true);
  return groups;
}

CountsExchange::CountsExchange(std::shared_ptr<Dispatch> dispatch, Exchange& ep_group, bool equal,
                               std::optional<int64_t> unit)
    : dispatch_(std::move(dispatch)), ep_size_(ep_group.size()), unit_(unit) {
  const Tensor& sent = dispatch_->expert_rows;
  const int64_t local_experts = sent.numel() / ep_size_;
  if (equal) {
    const int64_t first = ep_group.rank() * local_experts;
    for (int r = 0; r < ep_size_; ++r)
      received_on_host_.insert(received_on_host_.end(), dispatch_->counts.begin() + first,
                               dispatch_->counts.begin() + first + local_experts);
    return;
  }
  received_ = at::empty_like(sent);
  const std::vector<int64_t> rows(static_cast<size_t>(ep_size_), local_experts);
  pending_ = ep_group.start_all_to_all(received_, sent, rows, rows);
  const at::Device device = sent.device();
  if (device.is_cpu()) return;
  const DeviceStream& stream = copy_stream(device);
  stream.wait(DeviceStream::current(device));
  const StreamScope scope(stream);
  pending_.wait_on_current_stream();
  copies_ = at::empty({2, sent.numel()}, at::TensorOptions(at::kLong).pinned_memory(true));
  copies_[0].copy_(sent, /*non_blocking=*/true);
  copies_[1].copy_(received_, /*non_blocking=*/true);
  copied_.record(stream);
}

std::shared_ptr<ExpertExchange> CountsExchange::wait() {
  if (received_on_host_.empty()) {
    pending_.wait();
    copied_.wait_on_host();
    const std::span<const int64_t> received = numbers_of(copies_.defined() ? copies_[1] : received_);
    received_on_host_.assign(received.begin(), received.end());
    const std::span<const int64_t> sent = numbers_of(copies_.defined() ? copies_[0] : dispatch_->expert_rows);
    dispatch_->counts.assign(sent.begin(), sent.end());
  }
  return std::make_shared<ExpertExchange>(
      plan_exchange(dispatch_->counts, received_on_host_, ep_size_, unit_));
}

std::shared_ptr<const Dispatch> CountsExchange::groups(const ExpertExchange& plan) const {
  return std::make_shared<const Dispatch>(groups_of_received(plan, unit_, dispatch_->expert_rows.device()));
}

RowsForExperts::RowsForExperts(const Tensor& x, const Tensor& weights, KeptRouting& routing,
                               std::optional<CountsExchange> counts, Exchange& ep_group, const BlockRun& run,
                               NodeLevel level)
    : ep_group_(&ep_group), level_(std::move(level)), in_flight_(std::make_shared<RowsInFlight>()) {
  if (run.selective == nullptr || !run.selective->recomputing()) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    in_flight_->gathered = gather_rows(x, *routing.dispatch, weights);
  }
  std::shared_ptr<ExpertExchange> plan;
  if (counts) routing.exchange = plan = counts->wait();
  routing_ = routing;
  rows_ = SendRowsFunction::apply(x, optional_of(weights), routing_, ep_group_, level_, in_flight_,
                                  run.selective);
  if (counts) plan->experts = counts->groups(*plan);  // while the rows travel
}

Tensor RowsForExperts::wait() {
  return ReceiveRowsFunction::apply(std::exchange(rows_, {}), routing_, ep_group_, level_, in_flight_);
}

Tensor sum_of_experts(const Tensor& outputs, const Tensor& weights, const Tensor& shared,
                      const KeptRouting& routing, Exchange& ep_group, const BlockRun& run,
                      const NodeLevel& level) {
  return SumOfExpertsFunction::apply(outputs, optional_of(weights), optional_of(shared), routing, &ep_group,
                                     level, run);
}

}  // namespace hyperion::models
