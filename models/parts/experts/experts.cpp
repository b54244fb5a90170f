#include "models/parts/experts/experts.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include "base/log.h"
#include "base/resources.h"
#include "models/float8/grouped_matmuls.h"
#include "models/kernels/matmul/grouped.h"
#include "models/layers/activation_checkpoint.h"
#include "models/layers/deferred_weights.h"
#include "models/layers/node_state.h"
#include "models/layers/ops.h"
#include "models/parts/experts/expert_chunks.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using DispatchPtr = std::shared_ptr<const Dispatch>;

// The state of a node between forward and backward. It reads weights through their parameters, because their
// storage may be freed and gathered again meanwhile.
struct SavedExperts : torch::CustomClassHolder {
  std::vector<ParameterPtr> stacks;
  ExpertProducts products;
  DispatchPtr dispatch;
  Tensor input;    // the node's input, which must not be written until backward
  Tensor weights;  // of assignments; undefined if this node does not multiply by them
  Tensor outputs;  // the experts' output rows; undefined unless the gradient of weights reads them
  DeferredWeights* deferred = nullptr;

  bool defers() const { return deferred != nullptr && deferred->deferring(); }
};

// Detaches a tensor that may be undefined, so that it does not keep its graph.
Tensor detached(const Tensor& tensor) {
  return tensor.defined() ? tensor.detach() : tensor;
}

// Returns the wgrads of the node's stacks, in order. `make` computes them from tensors that it owns. They are
// undefined if the stacks are frozen, or if wgrad is deferred.
variable_list stack_gradients(const SavedExperts& saved, std::function<variable_list()> make) {
  if (std::ranges::none_of(saved.stacks, [](const ParameterPtr& stack) { return stack->trainable; }))
    return variable_list(saved.stacks.size());
  if (!saved.defers()) return make();
  saved.deferred->add([stacks = saved.stacks, make = std::move(make)] {
    variable_list gradients = make();
    for (size_t i = 0; i < stacks.size(); ++i) {
      if (!gradients[i].defined()) continue;
      Tensor& grad = stacks[i]->weight.mutable_grad();
      if (grad.defined())
        grad.add_(gradients[i]);
      else
        grad = std::move(gradients[i]);
    }
  });
  return variable_list(saved.stacks.size());
}

using OptionalTensor = std::optional<Tensor>;

// Gathers rows and multiplies them by w1 and w3: x [tokens, dim], weights [tokens, k] or undefined -> gate
// and up, [rows, hidden].
struct GateUpFunction : Function<GateUpFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& x, const OptionalTensor& given_weights,
                               const Tensor& /*w1*/, const Tensor& /*w3*/,
                               const std::vector<ParameterPtr>& stacks, const ExpertProducts& products,
                               const DispatchPtr& dispatch, SelectiveCheckpoint* selective,
                               DeferredWeights* deferred) {
    const Tensor weights = given_weights.value_or(Tensor());
    // SAC by operation neither saves nor counts grouped products, as in v0.2.2.
    const bool saves = selective != nullptr && selective->saves_all_products();
    variable_list results = saved_or_computed(selective, saves, [&] {
      Operand rows(gather_rows(x, *dispatch, weights));
      return products.gate_and_up(rows, *stacks[0], *stacks[1], dispatch->groups());
    });
    SavedExperts saved;
    saved.stacks = stacks;
    saved.products = products;
    saved.dispatch = dispatch;
    saved.input = x;
    saved.weights = weights;
    saved.deferred = deferred;
    keep_state(context, std::move(saved));
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = kept_state<SavedExperts>(context);
    const Dispatch& dispatch = *saved->dispatch;
    const ExpertProducts& products = saved->products;
    const Tensor gate = readable_rows(grads[0], dispatch.groups()),
                 up = readable_rows(grads[1], dispatch.groups());
    const bool together = saved->stacks[0]->pack->weight.defined();  // then they are read where they are
    Tensor grad_rows =
        products.input_gradient_of_both(together ? grads[0] : gate, together ? grads[1] : up,
                                        *saved->stacks[0], *saved->stacks[1], dispatch.groups());
    const Tensor grad_x = sum_rows(grad_rows, dispatch, saved->weights);
    Tensor grad_weights;
    if (saved->weights.defined())
      grad_weights = gradient_of_weights(grad_rows, gather_rows(saved->input, dispatch, Tensor()), dispatch);
    grad_rows.reset();
    // The input is moved: this frees it before autograd runs the next node.
    const variable_list grad_stacks = stack_gradients(
        *saved, [products = saved->products, stacks = saved->stacks, sent = saved->dispatch, gate, up,
                 weights = detached(saved->weights), x = detached(std::exchange(saved->input, {}))] {
          Operand rows(gather_rows(x, *sent, weights)), grad_gate(gate), grad_up(up);
          const auto gradient_of = [&](const ParameterPtr& stack, Operand& grad) {
            return stack->trainable ? products.weight_gradient(grad, rows, sent->groups()) : Tensor();
          };
          return variable_list{gradient_of(stacks[0], grad_gate), gradient_of(stacks[1], grad_up)};
        });
    return {grad_x,   grad_weights, grad_stacks[0], grad_stacks[1], Tensor(),
            Tensor(), Tensor(),     Tensor(),       Tensor()};
  }
};

// Multiplies hidden rows by w2 and sums them: h [rows, hidden], weights [tokens, k] or undefined, shared
// [tokens, dim] or undefined -> [tokens, dim].
struct DownFunction : Function<DownFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& h, const OptionalTensor& given_weights,
                        const OptionalTensor& given_shared, const Tensor& w2, const ParameterPtr& stack,
                        const ExpertProducts& products, const DispatchPtr& dispatch, bool computes,
                        DeferredWeights* deferred) {
    const Tensor weights = given_weights.value_or(Tensor()), shared = given_shared.value_or(Tensor());
    const bool casts_weighted = weights.defined() && products.float8 != nullptr;
    Operand rows(h);
    Tensor outputs;
    if (computes || casts_weighted) outputs = products.output(rows, *stack, dispatch->groups());
    SavedExperts saved;
    if (casts_weighted) saved.outputs = outputs;
    saved.stacks = {stack};
    saved.products = products;
    saved.dispatch = dispatch;
    saved.input = h;
    saved.weights = weights;
    saved.deferred = deferred;
    keep_state(context, std::move(saved));
    context->saved_data["adds"] = shared.defined();
    if (!computes) return at::empty({dispatch->tokens_of(h.size(0)), w2.size(1)}, h.options());
    return sum_rows(outputs, *dispatch, weights, shared);
  }

  // With t = (gradient of a row) w2, the gradient of the row's weight is t h, so the row itself, w2 h, is
  // neither kept nor recomputed. FP8 differs: like torchao, and as with expert parallelism, it casts the
  // gradient of a row times its weight, which gives no such t.
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = kept_state<SavedExperts>(context);
    const Dispatch& dispatch = *saved->dispatch;
    const Tensor grad = grads[0].contiguous();
    const Tensor outputs = std::exchange(saved->outputs, {});
    const Tensor before_cast = outputs.defined() ? detached(saved->weights) : Tensor();
    Operand grad_rows(gather_rows(grad, dispatch, before_cast));
    const Tensor t = saved->products.input_gradient(grad_rows, *saved->stacks[0], dispatch.groups());
    Tensor grad_h = t, grad_weights, h = detached(std::exchange(saved->input, {})).contiguous();
    if (outputs.defined()) {
      grad_weights = gradient_of_weights(gather_rows(grad, dispatch, Tensor()), outputs, dispatch);
    } else if (saved->weights.defined()) {
      const kernels::WeightedRows weighted = weight_rows(t, h, dispatch, saved->weights);
      grad_h = weighted.a;
      h = weighted.b;
      grad_weights = weighted.products;
    }
    // A deferred wgrad gathers the rows again instead of keeping top_k copies of a token's gradient.
    const variable_list grad_stacks =
        stack_gradients(*saved, [=, products = saved->products, sent = saved->dispatch,
                                 kept = saved->defers() ? Tensor() : grad_rows.values] {
          Operand rows(kept.defined() ? kept : gather_rows(grad, *sent, before_cast)), input(h);
          return variable_list{products.weight_gradient(rows, input, sent->groups())};
        });
    return {grad_h,         grad_weights, context->saved_data["adds"].toBool() ? grads[0] : Tensor(),
            grad_stacks[0], Tensor(),     Tensor(),
            Tensor(),       Tensor(),     Tensor()};
  }
};

int64_t sum_of_rows(const std::vector<int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}
// All ranks send as many rows, so the rows that one of them sends are the mean of those they receive.
int64_t mean_rows(const KeptRouting& routing) {
  return routing.mean_rows > 0 ? routing.mean_rows : sum_of_rows(routing.exchange->sent);
}

// Returns "layers.3.moe.experts".
std::string block_of(const Parameter& stack) {
  return stack.fqn.substr(0, stack.fqn.rfind('.'));
}

// Runs `work` on the rows that the routers have sent to this rank. If memory runs out, the log says how many
// they are.
template <typename Work>
auto with_received_rows(const Parameter& stack, const KeptRouting& routing, const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    const std::optional<ExhaustedResource> resource = exhausted_resource(error);
    if (resource && resource->kind == ExhaustedResource::Kind::kMemory && routing.exchange != nullptr) {
      const int64_t received = sum_of_rows(routing.exchange->received), mean = mean_rows(routing);
      log_error("{}: memory ran out with {} rows for the experts of this rank; the mean of the ranks is {}{}",
                block_of(stack), received, mean,
                runs_in_chunks(received, mean) ? ": the router prefers them" : "");
    }
    throw;
  }
}

}  // namespace

Experts::Experts(const PartParameters& parameters, const ModelArgs& args, const ParallelDims& dims)
    : ep_group_(dims.expert_rows_group()),
      etp_group_(dims.etp_group()),
      activation_(args.activation),
      score_before_(args.experts.score_before_experts),
      w1_(parameters.at("moe.experts.w1")),
      w2_(parameters.at("moe.experts.w2")),
      w3_(parameters.at("moe.experts.w3")) {
  std::vector<int64_t> shape = w1_->shape;
  shape[1] += w3_->shape[1];
  w1_->pack = w3_->pack = make_parameter(w1_->fqn + " and w3", std::move(shape), Init::ones(), w1_->split);
}

std::optional<int64_t> Experts::unit_of_rows(const Tensor& x) const {
  if (products_.float8) return products_.float8->unit();
  const kernels::GroupedShape shape{.groups = w1_->local[0], .k = w1_->local[2], .j = w1_->local[1]};
  return kernels::multiplies_groups_at_once(x, shape) ? std::optional(kernels::kGroupUnit) : std::nullopt;
}

void Experts::set_float8(std::shared_ptr<const float8::GroupedMatmuls> float8) {
  products_ = {std::move(float8), w1_->local[1] < w1_->shape[1] ? etp_group_ : nullptr};
}

Tensor Experts::forward(const Tensor& x, const Tensor& weights, const Tensor& shared,
                        const KeptRouting& routing, const BlockRun& run) const {
  return forward_local(x, weights, shared, routing.dispatch, run, !run.recomputes());
}

RowsForExperts Experts::send(const Tensor& x, const Tensor& weights, KeptRouting& routing,
                             std::optional<CountsExchange> counts, const BlockRun& run,
                             const NodeLevel& level) const {
  return with_received_rows(*w1_, routing, [&] {
    return RowsForExperts(x, score_before_ ? weights : Tensor(), routing, std::move(counts), *ep_group_, run,
                          level);
  });
}

Tensor Experts::forward(RowsForExperts rows, const Tensor& weights, const Tensor& shared,
                        const BlockRun& run) const {
  const Tensor none, after = score_before_ ? none : weights;
  // The gradient of weights reads the rows that come back; SAC saves them.
  const bool computes = !run.recomputes() || (after.defined() && run.selective == nullptr);
  return with_received_rows(*w1_, rows.routing(), [&] {
    const Tensor outputs = forward_received(rows.wait(), rows.routing(), run, computes);
    return sum_of_experts(outputs, after, shared, rows.routing(), *ep_group_, run, rows.level());
  });
}

Tensor Experts::forward_received(const Tensor& rows, const KeptRouting& routing, const BlockRun& run,
                                 bool computes) const {
  const ExpertExchange& exchange = *routing.exchange;
  const int64_t received = sum_of_rows(exchange.received), mean = mean_rows(routing);
  if (!runs_in_chunks(received, mean)) {
    const Tensor none;
    return forward_local(rows, none, none, exchange.experts, run, computes);
  }
  static std::once_flag said;
  std::call_once(said, [&] {
    log_info(
        "{}: {} rows for the experts of this rank run in chunks of the ranks' mean, {}; so do all above "
        "twice the mean",
        block_of(*w1_), received, mean);
  });
  const int64_t unit = unit_of_rows(rows).value_or(1);
  return experts_in_chunks(rows, {.w1 = w1_, .w2 = w2_, .w3 = w3_}, products_, activation_, exchange.experts,
                           ends_of_groups(exchange), std::max(unit, mean / unit * unit), computes);
}

Tensor Experts::forward_local(const Tensor& x, const Tensor& weights, const Tensor& shared,
                              const DispatchPtr& dispatch, const BlockRun& run, bool computes) const {
  const std::vector<ParameterPtr> stacks = {w1_, w3_};
  const variable_list gate_up =
      GateUpFunction::apply(x, score_before_ ? optional_of(weights) : std::nullopt, w1_->weight, w3_->weight,
                            stacks, products_, dispatch, run.selective, run.deferred);
  const Tensor h = ops::gated_activation(gate_up[0], gate_up[1], activation_);
  return DownFunction::apply(h, score_before_ ? std::nullopt : optional_of(weights), optional_of(shared),
                             w2_->weight, w2_, products_, dispatch, computes, run.deferred);
}

}  // namespace hyperion::models
