#include "models/parts/experts/experts.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "base/log.h"
#include "base/resources.h"
#include "models/float8/grouped_matmuls.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/matmul/grouped.h"
#include "models/kernels/matmul/matmul.h"
#include "models/layers/activation_checkpoint.h"
#include "models/layers/deferred_weights.h"
#include "models/layers/node_state.h"
#include "models/layers/ops.h"
#include "models/parts/experts/products/expert_chunks.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using DispatchPtr = std::shared_ptr<const Dispatch>;

// The state of a node between forward and backward. It reads weights through their parameters, because their
// storage may be freed and gathered again meanwhile.
struct SavedExperts : torch::CustomClassHolder {
  ExpertStacks stacks;
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
variable_list stack_gradients(const SavedExperts& saved, const std::vector<ParameterPtr>& stacks,
                              std::function<variable_list()> make) {
  if (std::ranges::none_of(stacks, [](const ParameterPtr& stack) { return stack->trainable; }))
    return variable_list(stacks.size());
  if (!saved.defers()) return make();
  saved.deferred->add([stacks, make = std::move(make)] {
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
  return variable_list(stacks.size());
}

using OptionalTensor = std::optional<Tensor>;

// Gathers rows and multiplies them by w1 and w3: x [tokens, dim], weights [tokens, k] or undefined -> the
// results of ExpertProducts::gate_and_up().
struct GateUpFunction : Function<GateUpFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& x, const OptionalTensor& given_weights,
                               const Tensor& /*w1*/, const Tensor& /*w3 or b1*/, const ExpertStacks& stacks,
                               const ExpertProducts& products, const DispatchPtr& dispatch,
                               SelectiveCheckpoint* selective, DeferredWeights* deferred) {
    const Tensor weights = given_weights.value_or(Tensor());
    // SAC by operation neither saves nor counts grouped products, as in v0.2.2.
    const bool saves = selective != nullptr && selective->saves_all_products();
    variable_list results = saved_or_computed(selective, saves, [&] {
      Operand rows(gather_rows(x, *dispatch, weights));
      return products.gate_and_up(rows, stacks, dispatch->groups());
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
    variable_list readable;
    for (const Tensor& grad : grads) readable.push_back(readable_rows(grad, dispatch.groups()));
    const ParameterPtr& pack = saved->stacks.w1->pack;
    const bool together = pack != nullptr && pack->weight.defined();  // then they are read where they are
    Tensor grad_rows =
        products.input_gradient_of_both(together ? grads : readable, saved->stacks, dispatch.groups());
    const Tensor grad_x = sum_rows(grad_rows, dispatch, saved->weights);
    Tensor grad_weights;
    if (saved->weights.defined())
      grad_weights = gradient_of_weights(grad_rows, gather_rows(saved->input, dispatch, Tensor()), dispatch);
    grad_rows.reset();
    // The input is moved: this frees it before autograd runs the next node.
    const variable_list grad_stacks =
        stack_gradients(*saved, saved->stacks.of_tokens(),
                        [products = saved->products, stacks = saved->stacks, sent = saved->dispatch, readable,
                         weights = detached(saved->weights), x = detached(std::exchange(saved->input, {}))] {
                          Operand rows(gather_rows(x, *sent, weights));
                          std::vector<Operand> operands(readable.begin(), readable.end());
                          return products.token_stack_gradients(operands, rows, stacks, sent->groups());
                        });
    return {grad_x,   grad_weights, grad_stacks[0], grad_stacks[1], Tensor(),
            Tensor(), Tensor(),     Tensor(),       Tensor()};
  }
};

// If this node multiplies rows by the weights of their tokens, all experts are this rank's, and the bias b2
// enters a token's sum as the product of its weights for each expert, [tokens, experts], by b2. Both
// gradients of that product are products over tokens, in the dtype of the weights.
//
// Returns the bias's part of the gradient of the weights, [tokens, k], from grad [tokens, dim].
Tensor bias_gradient_of_weights(const Tensor& grad, const Parameter& b2, const Dispatch& dispatch) {
  const at::ScalarType wide = kernels::opmath_dtype(grad);
  const Tensor products =
      kernels::matmul(columns_of_bias(grad, b2).to(wide), b2.weight.detach().to(wide).t());
  return products.gather(1, dispatch.choices.to(at::kLong));
}
// Returns the gradient of b2, [experts, n].
Tensor weighted_bias_gradient(const Tensor& grad, const Tensor& weights, const Parameter& b2,
                              const Dispatch& dispatch) {
  const Tensor of_experts = at::zeros({grad.size(0), b2.local[0]}, weights.options())
                                .scatter_(1, dispatch.choices.to(at::kLong), weights);
  return kernels::matmul(of_experts.t(), columns_of_bias(grad, b2).to(weights.scalar_type()))
      .to(grad.scalar_type());
}

// Multiplies hidden rows by w2 and sums them: h [rows, hidden], weights [tokens, k] or undefined, shared
// [tokens, dim] or undefined -> [tokens, dim].
struct DownFunction : Function<DownFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& h, const OptionalTensor& given_weights,
                        const OptionalTensor& given_shared, const Tensor& w2, const OptionalTensor& /*b2*/,
                        const ExpertStacks& stacks, const ExpertProducts& products,
                        const DispatchPtr& dispatch, bool computes, DeferredWeights* deferred) {
    const Tensor weights = given_weights.value_or(Tensor()), shared = given_shared.value_or(Tensor());
    const bool casts_weighted = weights.defined() && products.float8 != nullptr;
    Operand rows(h);
    Tensor outputs;
    if (computes || casts_weighted) outputs = products.down(rows, stacks, dispatch->groups());
    SavedExperts saved;
    if (casts_weighted) saved.outputs = outputs;
    saved.stacks = stacks;
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
    const Tensor t = saved->products.input_gradient(grad_rows, *saved->stacks.w2, dispatch.groups());
    Tensor grad_h = t, grad_weights, h = detached(std::exchange(saved->input, {})).contiguous();
    if (outputs.defined()) {
      grad_weights = gradient_of_weights(gather_rows(grad, dispatch, Tensor()), outputs, dispatch);
    } else if (saved->weights.defined()) {
      const kernels::WeightedRows weighted = weight_rows(t, h, dispatch, saved->weights);
      grad_h = weighted.a;
      h = weighted.b;
      grad_weights = weighted.products;
      if (saved->stacks.clamped())
        grad_weights = grad_weights.view(saved->weights.sizes())
                           .add(bias_gradient_of_weights(grad, *saved->stacks.b2, dispatch));
    }
    // A deferred wgrad gathers the rows again instead of keeping top_k copies of a token's gradient.
    const bool weighted_rows = before_cast.defined() || !saved->weights.defined();
    variable_list grad_stacks = stack_gradients(
        *saved, saved->stacks.of_hidden(),
        [=, products = saved->products, stacks = saved->stacks, sent = saved->dispatch,
         weights = detached(saved->weights), kept = saved->defers() ? Tensor() : grad_rows.values] {
          Operand rows(kept.defined() ? kept : gather_rows(grad, *sent, before_cast)), input(h);
          variable_list gradients = {
              stacks.w2->trainable ? products.weight_gradient(rows, input, sent->groups()) : Tensor()};
          if (stacks.clamped())
            gradients.push_back(!stacks.b2->trainable ? Tensor()
                                : weighted_rows
                                    ? bias_gradient(columns_of_bias(rows.values, *stacks.b2), sent->groups())
                                    : weighted_bias_gradient(grad, weights, *stacks.b2, *sent));
          return gradients;
        });
    grad_stacks.resize(2);
    return {grad_h,         grad_weights,   context->saved_data["adds"].toBool() ? grads[0] : Tensor(),
            grad_stacks[0], grad_stacks[1], Tensor(),
            Tensor(),       Tensor(),       Tensor(),
            Tensor()};
  }
};

// All ranks send as many rows, so the rows that one of them sends are the mean of those they receive.
int64_t mean_rows(const KeptRouting& routing, size_t slice) {
  return routing.mean_rows > 0 ? routing.mean_rows : total_rows(routing.exchanges[slice]->sent);
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
    if (resource && resource->kind == ExhaustedResource::Kind::kMemory && !routing.exchanges.empty()) {
      int64_t received = 0, mean = 0;
      for (size_t slice = 0; slice < routing.exchanges.size(); ++slice) {
        received += total_rows(routing.exchanges[slice]->received);
        mean += mean_rows(routing, slice);
      }
      log_error("{}: memory ran out with {} rows for the experts of this rank; the mean of the ranks is {}{}",
                block_of(stack), received, mean,
                runs_in_chunks(received, mean) ? ": the router prefers them" : "");
    }
    throw;
  }
}

ExpertStacks stacks_of(const PartParameters& parameters, const ModelArgs& args) {
  const auto at = [&](const char* name) { return parameters.at(std::string("moe.experts.") + name); };
  if (!args.experts.clamped) return {.w1 = at("w1"), .w2 = at("w2"), .w3 = at("w3")};
  ExpertStacks stacks{
      .w1 = at("mlp1_weight"), .w2 = at("mlp2_weight"), .b1 = at("mlp1_bias"), .b2 = at("mlp2_bias")};
  for (const ParameterPtr& bias : {stacks.b1, stacks.b2}) bias->rounds_gradient = true;  // as those of stacks
  return stacks;
}

}  // namespace

Experts::Experts(const PartParameters& parameters, const ModelArgs& args, const ParallelDims& dims)
    : ep_group_(dims.expert_rows_group()),
      etp_group_(dims.etp_group()),
      activation_(args.activation),
      score_before_(args.experts.score_before_experts),
      stacks_(stacks_of(parameters, args)) {
  if (stacks_.clamped()) return;
  const ParameterPtr &w1 = stacks_.w1, &w3 = stacks_.w3;
  std::vector<int64_t> shape = w1->shape;
  shape[1] += w3->shape[1];
  w1->pack = w3->pack = make_parameter(w1->fqn + " and w3", std::move(shape), Init::ones(), w1->split);
}

std::vector<ParameterPtr> Experts::parameters() const {
  const auto& [w1, w2, w3, b1, b2] = stacks_;
  return stacks_.clamped() ? std::vector<ParameterPtr>{w1, w2, b1, b2}
                           : std::vector<ParameterPtr>{w1, w2, w3};
}

std::optional<int64_t> Experts::unit_of_rows(const Tensor& x) const {
  if (products_.float8) return products_.float8->unit();
  const std::vector<int64_t>& stack = stacks_.w2->local;
  const kernels::GroupedShape shape{.groups = stack[0], .k = stack[1], .j = stack[2]};
  return kernels::multiplies_groups_at_once(x, shape) ? std::optional(kernels::kGroupUnit) : std::nullopt;
}

void Experts::set_float8(std::shared_ptr<const float8::GroupedMatmuls> float8) {
  products_ = {std::move(float8), stacks_.w1->local[1] < stacks_.w1->shape[1] ? etp_group_ : nullptr};
}

Tensor Experts::forward(const Tensor& x, const Tensor& weights, const Tensor& shared,
                        const KeptRouting& routing, const BlockRun& run) const {
  return forward_local(x, weights, shared, routing.dispatch, run, !run.recomputes());
}

DispatchExchange Experts::send(const Tensor& x, const Tensor& weights, KeptRouting& routing,
                               std::optional<CountsExchange> counts, const BlockRun& run,
                               const NodeLevel& level) const {
  return with_received_rows(*stacks_.w1, routing, [&] {
    return DispatchExchange(x, score_before_ ? weights : Tensor(), routing, std::move(counts), *ep_group_,
                            run, level);
  });
}

Tensor Experts::forward(DispatchExchange rows, const Tensor& weights, const Tensor& shared,
                        const BlockRun& run) const {
  const Tensor none, after = score_before_ ? none : weights;
  // The gradient of weights reads the rows that come back; SAC saves them.
  const bool computes = !run.recomputes() || (after.defined() && run.selective == nullptr);
  return with_received_rows(*stacks_.w1, rows.routing(), [&] {
    CombineExchange results(rows.routing(), after, *ep_group_, run, rows.level());
    for (size_t slice = 0; slice < rows.routing().exchanges.size(); ++slice) {
      const Tensor outputs = forward_received(rows.wait(slice), rows.routing(), slice, run, computes);
      results.send(outputs);  // the received rows are freed by now
    }
    return results.sum(shared);
  });
}

Tensor Experts::forward_received(const Tensor& rows, const KeptRouting& routing, size_t slice,
                                 const BlockRun& run, bool computes) const {
  const ExchangePlan& exchange = *routing.exchanges[slice];
  const int64_t received = total_rows(exchange.received), mean = mean_rows(routing, slice);
  if (!runs_in_chunks(received, mean)) {
    const Tensor none;
    return forward_local(rows, none, none, exchange.experts, run, computes);
  }
  static std::once_flag said;
  std::call_once(said, [&] {
    log_info(
        "{}: {} rows for the experts of this rank{} run in chunks of the ranks' mean, {}; so do all above "
        "twice the mean",
        block_of(*stacks_.w1), received, routing.exchanges.size() > 1 ? ", of one slice," : "", mean);
  });
  const int64_t unit = unit_of_rows(rows).value_or(1);
  return experts_in_chunks(rows, stacks_, products_, activation_, exchange.experts, ends_of_groups(exchange),
                           std::max(unit, mean / unit * unit), computes);
}

Tensor Experts::forward_local(const Tensor& x, const Tensor& weights, const Tensor& shared,
                              const DispatchPtr& dispatch, const BlockRun& run, bool computes) const {
  const variable_list gate_up = GateUpFunction::apply(
      x, score_before_ ? optional_of(weights) : std::nullopt, stacks_.w1->weight,
      stacks_.of_tokens()[1]->weight, stacks_, products_, dispatch, run.selective, run.deferred);
  const Tensor h = stacks_.clamped() ? ops::clamped_gate(gate_up[0])
                                     : ops::gated_activation(gate_up[0], gate_up[1], activation_);
  return DownFunction::apply(h, score_before_ ? std::nullopt : optional_of(weights), optional_of(shared),
                             stacks_.w2->weight,
                             stacks_.clamped() ? OptionalTensor(stacks_.b2->weight) : std::nullopt, stacks_,
                             products_, dispatch, computes, run.deferred);
}

}  // namespace hyperion::models
