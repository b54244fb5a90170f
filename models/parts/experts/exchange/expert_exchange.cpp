#include "models/parts/experts/exchange/expert_exchange.h"

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

// Returns a tensor of the graph whose elements are never read.
Tensor without_elements(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty({1}, options).expand(sizes);
}

// Returns the rows that an exchange sends: between nodes the packed sums of the exchange within a node, if
// there are any, in place of `rows`.
Tensor rows_to_send(const Tensor& rows, const NodeLevel& level, Tensor NodeSums::*sums) {
  if (level.sums == nullptr || level.packs) return rows;
  const Tensor packed = std::exchange(level.sums.get()->*sums, {});
  return packed.defined() ? packed : rows;
}

// Returns the sums of `rows` for their tokens, [tokens, width] as `options` say. Within a node they are
// packed into `sums`, and the result has no elements.
Tensor sums_of_tokens(const Tensor& rows, const Dispatch& dispatch, const Tensor& weights,
                      const Tensor& added, const NodeLevel& level, Tensor NodeSums::*sums,
                      at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (level.sums == nullptr) return sum_rows(rows, dispatch, weights, added);
  if (!level.packs) return sum_packed_rows(rows, dispatch, added, sizes[1], options.dtype().toScalarType());
  Tensor& packed = level.sums.get()->*sums;
  if (packed.defined()) throw_bug("packed sums of one slice were not taken");
  packed = pack_row_sums(rows, dispatch, weights);
  return without_elements(sizes, options);
}

// Starts the exchange of a slice's rows, of the tensor of all slices. The blocks of the result are valid
// after `pending`.
Tensor to_experts(const Tensor& rows, const ExchangePlan& exchange, Exchange& ep_group, Pending& pending) {
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
    for (const auto& exchange : routing.exchanges) all += total_rows(exchange->sent);
    returned = at::empty({all, rows.size(1)}, rows.options());
  }
  const ExchangePlan& exchange = *routing.exchanges[slice];
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
    return {sums_of_tokens(grad_rows, dispatch, saved->weights, Tensor(), saved->level, &NodeSums::gradients,
                           saved->sizes, saved->options),
            grad_weights,
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor()};
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
    RowsInFlight& in_flight = *saved->in_flight;
    from_experts(rows_to_send(grads[0], saved->level, &NodeSums::gradients), saved->routing, saved->slice,
                 *saved->ep_group, in_flight.gradients, in_flight.pending[saved->slice]);
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
    if (sends)
      from_experts(rows_to_send(outputs, level, &NodeSums::results), routing, slice, *ep_group,
                   in_flight->rows, in_flight->pending[slice]);
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
    return sums_of_tokens(rows, dispatch, weights, shared, level, &NodeSums::results, {tokens, n}, options);
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

}  // namespace

DispatchExchange::DispatchExchange(const Tensor& x, const Tensor& weights, KeptRouting& routing,
                                   std::optional<CountsExchange> counts, Exchange& ep_group,
                                   const BlockRun& run, NodeLevel level)
    : ep_group_(&ep_group), level_(std::move(level)), in_flight_(std::make_shared<RowsInFlight>()) {
  if (run.selective == nullptr || !run.selective->recomputing()) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    in_flight_->gathered = gather_rows(x, *routing.dispatch, weights);
  }
  std::vector<std::shared_ptr<ExchangePlan>> plans;
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
