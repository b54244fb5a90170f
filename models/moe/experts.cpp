#include "models/moe/experts.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "models/block_linear.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/matmul/grouped.h"
#include "models/layers/activation_checkpoint.h"
#include "models/ops.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using DispatchPtr = std::shared_ptr<const Dispatch>;

// What a node keeps for its backward. Weights are read through their parameters: what lies behind them may be
// freed and gathered a second time meanwhile.
struct SavedExperts : torch::CustomClassHolder {
  std::vector<ParameterPtr> stacks;
  DispatchPtr dispatch;
  Tensor input;    // of the node: they must not be written until backward
  Tensor weights;  // of slots, where this node multiplies by them
};

void save_experts(AutogradContext* context, SavedExperts saved) {
  context->saved_data["experts"] =
      c10::IValue::make_capsule(c10::make_intrusive<SavedExperts>(std::move(saved)));
}
c10::intrusive_ptr<SavedExperts> saved_experts(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<SavedExperts>(context->saved_data["experts"].toCapsule());
}

Tensor factors_of_rows(const Tensor& weights, const Dispatch& dispatch) {
  return weights.flatten().index_select(0, dispatch.slots).unsqueeze(1);
}

// A node's input that may not be there: autograd takes no undefined tensors.
using OptionalTensor = std::optional<Tensor>;
OptionalTensor optional_of(const Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

// The sum over each row of a times b, in the dtype of sums.
Tensor row_products(const Tensor& a, const Tensor& b) {
  const at::ScalarType wide = kernels::opmath_dtype(a);
  return a.to(wide).mul(b.to(wide)).sum(1);
}

// x [tokens, dim], weights [tokens, k] or undefined -> rows of gate and up, [rows, hidden].
struct GateUpFunction : Function<GateUpFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& x, const OptionalTensor& given_weights,
                               const Tensor& w1, const Tensor& w3, const std::vector<ParameterPtr>& stacks,
                               const DispatchPtr& dispatch, SelectiveCheckpoint* selective) {
    const Tensor weights = given_weights.value_or(Tensor());
    // As v0.2.2's grouped product, which its checkpointing by operation neither saves nor counts.
    const bool saves = selective != nullptr && selective->saves_all_products();
    variable_list results = saved_or_computed(selective, saves, [&] {
      const Tensor rows = gather_rows(x, *dispatch, weights);
      return variable_list{kernels::grouped_matmul(rows, w1.transpose(1, 2), dispatch->groups()),
                           kernels::grouped_matmul(rows, w3.transpose(1, 2), dispatch->groups())};
    });
    SavedExperts saved;
    saved.stacks = stacks;
    saved.dispatch = dispatch;
    saved.input = x;
    saved.weights = weights;
    save_experts(context, std::move(saved));
    return results;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = saved_experts(context);
    const Dispatch& dispatch = *saved->dispatch;
    const Tensor grad_gate = grads[0].contiguous(), grad_up = grads[1].contiguous();
    Tensor grad_rows = kernels::grouped_matmul(grad_up, saved->stacks[1]->weight, dispatch.groups());
    grad_rows.add_(kernels::grouped_matmul(grad_gate, saved->stacks[0]->weight, dispatch.groups()));
    const Tensor grad_x = sum_rows(grad_rows, dispatch, saved->weights);
    Tensor grad_weights;
    if (saved->weights.defined())
      grad_weights =
          by_slot(row_products(grad_rows, gather_rows(saved->input, dispatch, Tensor())), dispatch);
    grad_rows.reset();
    const Tensor rows = gather_rows(saved->input, dispatch, saved->weights);
    saved->input.reset();  // not kept until the nodes before this one have run
    return {grad_x,
            grad_weights,
            kernels::grouped_outer_matmul(grad_gate, rows, dispatch.groups()),
            kernels::grouped_outer_matmul(grad_up, rows, dispatch.groups()),
            Tensor(),
            Tensor(),
            Tensor()};
  }
};

// hidden rows h [rows, hidden], weights [tokens, k] or undefined, shared [tokens, dim] or undefined ->
// [tokens, dim].
struct DownFunction : Function<DownFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& h, const OptionalTensor& given_weights,
                        const OptionalTensor& given_shared, const Tensor& w2, const ParameterPtr& stack,
                        const DispatchPtr& dispatch, bool computes) {
    const Tensor weights = given_weights.value_or(Tensor()), shared = given_shared.value_or(Tensor());
    SavedExperts saved;
    saved.stacks = {stack};
    saved.dispatch = dispatch;
    saved.input = h;
    saved.weights = weights;
    save_experts(context, std::move(saved));
    context->saved_data["adds"] = shared.defined();
    if (!computes) return at::empty({dispatch->choices.size(0), w2.size(1)}, h.options());
    return sum_rows(kernels::grouped_matmul(h, w2.transpose(1, 2), dispatch->groups()), *dispatch, weights,
                    shared);
  }

  // With t = (gradient of a row) w2, the gradient of the row's weight is t h: the row itself, w2 h, is not
  // needed, and neither kept nor computed for it.
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = saved_experts(context);
    const Dispatch& dispatch = *saved->dispatch;
    const Tensor grad_rows = gather_rows(grads[0].contiguous(), dispatch, Tensor());
    const Tensor t = kernels::grouped_matmul(grad_rows, saved->stacks[0]->weight, dispatch.groups());
    Tensor grad_h = t, grad_weights, h = std::exchange(saved->input, Tensor()).contiguous();
    if (saved->weights.defined()) {
      grad_weights = by_slot(row_products(t, h), dispatch);
      const Tensor factors = factors_of_rows(saved->weights, dispatch);
      grad_h = t.to(factors.scalar_type()).mul(factors).to(t.scalar_type());
      h = h.to(factors.scalar_type()).mul(factors).to(t.scalar_type());
    }
    return {grad_h,
            grad_weights,
            context->saved_data["adds"].toBool() ? grads[0] : Tensor(),
            kernels::grouped_outer_matmul(grad_rows, h, dispatch.groups()),
            Tensor(),
            Tensor(),
            Tensor()};
  }
};

ParameterPtr expert_stack(int64_t layer, const char* name, std::vector<int64_t> shape, double std) {
  return make_parameter(fmt::format("layers.{}.moe.experts.{}", layer, name), std::move(shape),
                        Init::truncated_normal(std, -2.0, 2.0));
}

}  // namespace

Experts::Experts(const ModelArgs& args, int64_t layer)
    : activation_(args.activation),
      score_before_(args.score_before_experts),
      w1_(expert_stack(layer, "w1", {args.num_experts, args.moe_hidden_dim, args.dim}, 0.02)),
      w2_(expert_stack(layer, "w2", {args.num_experts, args.dim, args.moe_hidden_dim},
                       residual_std(args, layer))),
      w3_(expert_stack(layer, "w3", {args.num_experts, args.moe_hidden_dim, args.dim},
                       residual_std(args, layer))) {}

bool Experts::run_at_once(const Tensor& x) const {
  return kernels::multiplies_groups_at_once(
      x, {.groups = w1_->shape[0], .k = w1_->shape[2], .j = w1_->shape[1]});
}

Tensor Experts::forward(const Tensor& x, const Tensor& weights, const Tensor& shared,
                        const DispatchPtr& dispatch, const BlockRun& run) const {
  const std::vector<ParameterPtr> stacks = {w1_, w3_};
  const variable_list gate_up =
      GateUpFunction::apply(x, score_before_ ? OptionalTensor(weights) : std::nullopt, w1_->weight,
                            w3_->weight, stacks, dispatch, run.selective);
  const Tensor h = ops::gated_activation(gate_up[0], gate_up[1], activation_);
  return DownFunction::apply(h, score_before_ ? std::nullopt : OptionalTensor(weights), optional_of(shared),
                             w2_->weight, w2_, dispatch, !run.recomputes());
}

}  // namespace hyperion::models
