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

#include "base/error.h"
#include "base/failpoint.h"
#include "models/layers/activation_checkpoint.h"
#include "models/layers/node_state.h"

namespace hyperion::models {
using at::Tensor;

// Rows on their way to the experts in forward, then their gradients on the way back. Each slice has an
// operation of its own.
struct RowsInFlight {
  Tensor gathered{};               // the rows of all slices to send, before they are sent
  Tensor gradients{};              // gradients of the rows of all slices, valid after their operations
  std::vector<Pending> pending{};  // the operations
};

// The experts' outputs on their way back in forward, then their gradients on the way to the experts. Each
// slice has an operation of its own.
struct ResultsInFlight {
  Tensor rows{};                   // the outputs of all slices, valid after their operations
  std::vector<Pending> pending{};  // the operations
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

// Starts the exchange of a slice's rows, of the tensor of all slices. The blocks of the result are valid
// after `pending`.
Tensor to_experts(const Tensor& rows, const ExpertExchange& exchange, Exchange& ep_group, Pending& pending) {
  const Tensor received = at::empty({exchange.received_rows, rows.size(1)}, rows.options());
  pending = ep_group.start_block_exchange(received, rows.contiguous(), exchange.received_blocks,
                                          exchange.sent_blocks);
  std::vector<Tensor> padding;  // filled while rows travel
  for (const auto& [first, count] : exchange.padding) padding.push_back(received.narrow(0, first, count));
  if (!padding.empty()) at::_foreach_zero_(padding);
  return received;
}
// Starts the exchange of a slice's rows back, into `returned`, which has those of all slices and is made for
// the first one.
void from_experts(const Tensor& rows, const KeptRouting& routing, size_t slice, Exchange& ep_group,
                  Tensor& returned, Pending& pending) {
  failpoint("step.rows");
  if (!returned.defined()) {
    int64_t all = 0;
    for (const auto& exchange : routing.exchanges) all += sum_of(exchange->sent);
    returned = at::empty({all, rows.size(1)}, rows.options());
  }
  const ExpertExchange& exchange = *routing.exchanges[slice];
  pending = ep_group.start_block_exchange(returned, rows.contiguous(), exchange.sent_blocks,
                                          exchange.received_blocks);
}

void wait_for_all(std::vector<Pending>& pending) {
  for (Pending& one : pending) one.wait();
}

// The state of SendRowsFunction and of ReceiveRowsFunction.
struct SavedRows : torch::CustomClassHolder {
  KeptRouting routing;
  Exchange* ep_group = nullptr;
  NodeLevel level;
  std::shared_ptr<RowsInFlight> in_flight;
  size_t slice = 0;   // ReceiveRowsFunction's
  Tensor x, weights;  // SendRowsFunction's; x is defined if weights are, whose gradient reads it
  std::vector<int64_t> sizes;
  at::TensorOptions options;
};

// Sends rows of x. Other nodes run before ReceiveRowsFunction waits for them. In backward gradients take the
// same way back: ReceiveRowsFunction starts their exchange, and this node waits for it.
struct SendRowsFunction : Function<SendRowsFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& x, const OptionalRows& given_weights,
                               const KeptRouting& routing, Exchange* ep_group, const NodeLevel& level,
                               const std::shared_ptr<RowsInFlight>& in_flight,
                               SelectiveCheckpoint* selective) {
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
      const Tensor rows = std::exchange(in_flight->gathered, {});
      variable_list received;
      for (size_t slice = 0; slice < routing.exchanges.size(); ++slice)
        received.push_back(to_experts(rows, *routing.exchanges[slice], *ep_group, in_flight->pending[slice]));
      return received;
    });
  }

  static variable_list backward(AutogradContext* context, const variable_list& /*grads*/) {
    const auto saved = kept_state<SavedRows>(context);
    const Dispatch& dispatch = *saved->routing.dispatch;
    wait_for_all(saved->in_flight->pending);
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
    if (saved.level.sums->gradients.defined()) throw_bug("packed gradients of one slice were not taken");
    saved.level.sums->gradients = pack_row_sums(grad_rows, dispatch, saved.weights);
    return without_elements(saved.sizes, saved.options);
  }
};

struct ReceiveRowsFunction : Function<ReceiveRowsFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& rows, const KeptRouting& routing,
                        Exchange* ep_group, const NodeLevel& level,
                        const std::shared_ptr<RowsInFlight>& in_flight, size_t slice) {
    SavedRows saved;
    saved.routing = routing;
    saved.ep_group = ep_group;
    saved.level = level;
    saved.in_flight = in_flight;
    saved.slice = slice;
    keep_state(context, std::move(saved));
    in_flight->pending[slice].wait();
    return rows;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = kept_state<SavedRows>(context);
    const NodeLevel& level = saved->level;
    const Tensor packed =
        level.sums != nullptr && !level.packs ? std::exchange(level.sums->gradients, {}) : Tensor();
    RowsInFlight& in_flight = *saved->in_flight;
    from_experts(packed.defined() ? packed : grads[0], saved->routing, saved->slice, *saved->ep_group,
                 in_flight.gradients, in_flight.pending[saved->slice]);
    return {grads[0], Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// The state of SendResultFunction and of SumOfResultsFunction.
struct SavedResults : torch::CustomClassHolder {
  KeptRouting routing;
  Exchange* ep_group = nullptr;
  std::shared_ptr<ResultsInFlight> in_flight;
  size_t slice = 0;  // SendResultFunction's
  Tensor rows;       // the outputs of all slices; defined if the gradient of weights reads them
  Tensor weights;    // may be undefined
};

// Sends a slice of the experts' outputs back. Experts of the next slice run before SumOfResultsFunction waits
// for them. In backward SumOfResultsFunction starts the exchange of the gradients of all slices, and this
// node waits for those of its slice.
struct SendResultFunction : Function<SendResultFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& outputs, const KeptRouting& routing,
                        Exchange* ep_group, const NodeLevel& level,
                        const std::shared_ptr<ResultsInFlight>& in_flight, size_t slice, bool sends) {
    SavedResults saved;
    saved.in_flight = in_flight;
    saved.slice = slice;
    keep_state(context, std::move(saved));
    if (sends) {
      const bool unpacks = level.sums != nullptr && !level.packs;
      from_experts(unpacks ? std::exchange(level.sums->results, {}) : outputs, routing, slice, *ep_group,
                   in_flight->rows, in_flight->pending[slice]);
    }
    return without_elements(outputs.sizes(), outputs.options());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = kept_state<SavedResults>(context);
    saved->in_flight->pending[saved->slice].wait();
    return {grads[0], Tensor(), Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

struct SumOfResultsFunction : Function<SumOfResultsFunction> {
  static Tensor forward(AutogradContext* context, at::TensorList sent, const OptionalRows& given_weights,
                        const OptionalRows& given_shared, const KeptRouting& routing, Exchange* ep_group,
                        const NodeLevel& level, const std::shared_ptr<ResultsInFlight>& in_flight,
                        const BlockRun& run) {
    const Tensor weights = given_weights.value_or(Tensor()), shared = given_shared.value_or(Tensor());
    const Dispatch& dispatch = *routing.dispatch;
    Tensor rows;  // [tokens * k, dim], or packed
    if (weights.defined() || !run.recomputes())
      rows = saved_or_computed(run.selective, weights.defined(), [&] {
        wait_for_all(in_flight->pending);
        return variable_list{std::exchange(in_flight->rows, {})};
      })[0];
    SavedResults saved;
    saved.routing = routing;
    saved.ep_group = ep_group;
    saved.in_flight = in_flight;
    saved.weights = weights;
    if (weights.defined()) saved.rows = rows;
    keep_state(context, std::move(saved));
    context->saved_data["adds"] = shared.defined();
    const int64_t tokens = dispatch.choices.size(0), n = sent[0].size(1);
    const at::TensorOptions options = sent[0].options();
    if (run.recomputes()) return at::empty({tokens, n}, options);
    if (level.sums == nullptr) return sum_rows(rows, dispatch, weights, shared);
    if (!level.packs) return sum_packed_rows(rows, dispatch, shared, n, sent[0].scalar_type());
    if (level.sums->results.defined()) throw_bug("packed results of one slice were not taken");
    level.sums->results = pack_row_sums(rows, dispatch, weights);
    return without_elements({tokens, n}, options);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = kept_state<SavedResults>(context);
    const Dispatch& dispatch = *saved->routing.dispatch;
    const Tensor grad = grads[0].contiguous();
    const size_t slices = saved->routing.exchanges.size();
    variable_list gradients(slices);  // of the results, and then of forward's other arguments
    {
      const Tensor rows = gather_rows(grad, dispatch, saved->weights);
      for (size_t slice = slices; slice-- > 0;)  // backward runs the last one first
        gradients[slice] = to_experts(rows, *saved->routing.exchanges[slice], *saved->ep_group,
                                      saved->in_flight->pending[slice]);
    }
    Tensor grad_weights;
    if (saved->weights.defined())
      grad_weights = gradient_of_weights(gather_rows(grad, dispatch, Tensor()), saved->rows, dispatch);
    saved->rows.reset();
    gradients.insert(gradients.end(),
                     {grad_weights, context->saved_data["adds"].toBool() ? grads[0] : Tensor(), Tensor(),
                      Tensor(), Tensor(), Tensor(), Tensor()});
    return gradients;
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
                             std::optional<int64_t> unit, int64_t first_row) {
  const size_t local_experts = counts.size() / static_cast<size_t>(ranks);
  ExpertExchange exchange;
  int64_t sent = first_row;
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

std::vector<RowBlock> blocks_of_slices(int64_t ranks, int64_t slices) {
  std::vector<RowBlock> blocks;
  for (int64_t rank = 0; rank < ranks; ++rank)
    for (int64_t slice = 0; slice < slices; ++slice) blocks.push_back({slice * ranks + rank, 1});
  return blocks;
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
  const int64_t slices = dispatch_->slices,
                local_experts = dispatch_->expert_rows.numel() / slices / ep_size_;
  if (equal) {
    for (int64_t slice = 0; slice < slices; ++slice) {
      const auto here = dispatch_->counts.begin() + (slice * ep_size_ + ep_group.rank()) * local_experts;
      for (int r = 0; r < ep_size_; ++r)
        received_on_host_.insert(received_on_host_.end(), here, here + local_experts);
    }
    return;
  }
  const Tensor sent = dispatch_->expert_rows.view({slices * ep_size_, local_experts});
  received_ = at::empty_like(sent);
  const std::vector<RowBlock> blocks = blocks_of_slices(ep_size_, slices);
  pending_ = ep_group.start_block_exchange(received_, sent, blocks, blocks);
  const at::Device device = sent.device();
  if (device.is_cpu()) return;
  const DeviceStream& stream = copy_stream(device);
  stream.wait(DeviceStream::current(device));
  const StreamScope scope(stream);
  pending_.wait_on_current_stream();
  copies_ = at::empty({2, sent.size(0), sent.size(1)}, at::TensorOptions(at::kLong).pinned_memory(true));
  copies_[0].copy_(sent, /*non_blocking=*/true);
  copies_[1].copy_(received_, /*non_blocking=*/true);
  copied_.record(stream);
}

std::vector<std::shared_ptr<ExpertExchange>> CountsExchange::wait() {
  if (received_on_host_.empty()) {
    pending_.wait();
    copied_.wait_on_host();
    const std::span<const int64_t> received = numbers_of(copies_.defined() ? copies_[1] : received_);
    received_on_host_.assign(received.begin(), received.end());
    const std::span<const int64_t> sent = numbers_of(copies_.defined() ? copies_[0] : dispatch_->expert_rows);
    dispatch_->counts.assign(sent.begin(), sent.end());
  }
  const std::span<const int64_t> sent = dispatch_->counts, received = received_on_host_;
  const size_t of_slice = sent.size() / static_cast<size_t>(dispatch_->slices);
  std::vector<std::shared_ptr<ExpertExchange>> plans;
  int64_t row = 0;
  for (size_t first = 0; first < sent.size(); first += of_slice) {
    plans.push_back(std::make_shared<ExpertExchange>(plan_exchange(
        sent.subspan(first, of_slice), received.subspan(first, of_slice), ep_size_, unit_, row)));
    row += sum_of(sent.subspan(first, of_slice));
  }
  return plans;
}

std::shared_ptr<const Dispatch> CountsExchange::groups(const ExpertExchange& plan) const {
  return std::make_shared<const Dispatch>(groups_of_received(plan, unit_, dispatch_->expert_rows.device()));
}

DispatchExchange::DispatchExchange(const Tensor& x, const Tensor& weights, KeptRouting& routing,
                                   std::optional<CountsExchange> counts, Exchange& ep_group,
                                   const BlockRun& run, NodeLevel level)
    : ep_group_(&ep_group), level_(std::move(level)), in_flight_(std::make_shared<RowsInFlight>()) {
  if (run.selective == nullptr || !run.selective->recomputing()) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    in_flight_->gathered = gather_rows(x, *routing.dispatch, weights);
  }
  std::vector<std::shared_ptr<ExpertExchange>> plans;
  if (counts) {
    plans = counts->wait();
    routing.exchanges.assign(plans.begin(), plans.end());
  }
  routing_ = routing;
  in_flight_->pending.resize(routing_.exchanges.size());
  rows_ = SendRowsFunction::apply(x, optional_of(weights), routing_, ep_group_, level_, in_flight_,
                                  run.selective);
  for (const auto& plan : plans) plan->experts = counts->groups(*plan);  // while the rows travel
}

Tensor DispatchExchange::wait(size_t slice) {
  return ReceiveRowsFunction::apply(std::exchange(rows_[slice], {}), routing_, ep_group_, level_, in_flight_,
                                    slice);
}

CombineExchange::CombineExchange(const KeptRouting& routing, const Tensor& weights, Exchange& ep_group,
                                 const BlockRun& run, NodeLevel level)
    : routing_(routing),
      weights_(weights),
      ep_group_(&ep_group),
      run_(&run),
      level_(std::move(level)),
      in_flight_(std::make_shared<ResultsInFlight>()) {
  in_flight_->pending.resize(routing.exchanges.size());
}

void CombineExchange::send(const Tensor& outputs) {
  const bool sends = !run_->recomputes() || (weights_.defined() && run_->selective == nullptr);
  sent_.push_back(
      SendResultFunction::apply(outputs, routing_, ep_group_, level_, in_flight_, sent_.size(), sends));
}

Tensor CombineExchange::sum(const Tensor& shared) {
  return SumOfResultsFunction::apply(at::TensorList(sent_), optional_of(weights_), optional_of(shared),
                                     routing_, ep_group_, level_, in_flight_, *run_);
}

}  // namespace hyperion::models
