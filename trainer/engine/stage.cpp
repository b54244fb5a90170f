#include "trainer/engine/stage.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/autograd.h>

#include "parallel/comm/trace_range.h"

namespace hyperion::trainer {

using parallel::TraceRange;
using BlockKind = models::BlockRun::Kind;

Stage::Stage(const models::Transformer& model, const std::vector<UnitRange>& stages,
             parallel::FsdpContext& fsdp, models::ActivationCheckpointing checkpointing,
             parallel::FsdpContext* experts)
    : model_(model),
      fsdp_(fsdp),
      experts_(experts),
      checkpointing_(std::move(checkpointing)),
      by_unit_(model.units().size()) {
  checkpointing_.blocks.resize(model.blocks().size(), models::ActivationCheckpoint::kNone);
  std::map<const Parameter*, parallel::ShardedParameterPtr> known;
  std::set<const Parameter*> copies;  // of a tied table, if another rank has the embedding
  if (stages.front().first > 0)
    for (const ParameterPtr& parameter : model.units().front().parameters) copies.insert(parameter.get());
  for (const auto& [first, end] : stages) {
    for (size_t unit = first; unit < end; ++unit) {
      const auto& [name, parameters] = model.units().at(unit);
      std::vector<ParameterPtr> dense, of_experts;
      for (const ParameterPtr& parameter : parameters)
        (parameter->domain == Domain::kExpert ? of_experts : dense).push_back(parameter);
      const auto add = [&](const std::string& of, const std::vector<ParameterPtr>& all, auto& context) {
        groups_.push_back(std::make_unique<parallel::ShardGroup>(of, all, known, context, copies));
        return groups_.back().get();
      };
      parallel::ShardGroup* const group = add(name, dense, fsdp);
      by_unit_[unit] =
          UnitGroups(group, of_experts.empty() ? nullptr : add(name + " experts", of_experts, *experts));
    }
  }
  for (const auto& group : groups_) {
    const parallel::LocalGradients& own = group->local_gradients();
    for (auto list : {&parallel::LocalGradients::tp_sharded, &parallel::LocalGradients::replicated,
                      &parallel::LocalGradients::experts, &parallel::LocalGradients::copies})
      (gradients_.*list).insert((gradients_.*list).end(), (own.*list).begin(), (own.*list).end());
  }
}

Stage::Stage(const models::Transformer& model, parallel::FsdpContext& fsdp,
             models::ActivationCheckpointing checkpointing, parallel::FsdpContext* experts)
    : Stage(model, {{0, model.units().size()}}, fsdp, std::move(checkpointing), experts) {}

std::vector<parallel::ShardedParameterPtr> Stage::parameters() const {
  std::vector<parallel::ShardedParameterPtr> all;
  for (const auto& group : groups_) all.insert(all.end(), group->owned().begin(), group->owned().end());
  return all;
}

std::vector<models::ExpertBalancePtr> Stage::balances() const {
  std::vector<models::ExpertBalancePtr> all;
  for (size_t block = 0; block < model_.blocks().size(); ++block)
    if (models::ExpertBalancePtr balance = model_.blocks()[block].balance();
        balance && by_unit_[block + 1].is_local())
      all.push_back(std::move(balance));
  return all;
}

void Stage::weights_changed() {
  const std::vector<parallel::ShardedParameterPtr> all = parameters();
  for (const parallel::ShardedParameterPtr& parameter : all) parameter->contents_changed();
  const auto& codec = fsdp_.options().codec;
  if (codec && codec->eager) parallel::encode_changed_weights(fsdp_, all);
}

void Stage::drop_gradients() {
  for (const auto& group : groups_) group->drop_grads();
}

MicrobatchState Stage::start_microbatch(UnitRange units, models::Microbatch batch, bool for_backward,
                                        models::LayerMetrics* metrics) const {
  MicrobatchState state{.batch = std::move(batch), .units = units, .metrics = metrics};
  if (for_backward) {
    state.saved.resize(units.end - units.first);
    state.weights.resize(units.end - units.first);
  }
  return state;
}

bool MicrobatchState::keeps_saved() const {
  const auto kept = [](const SavedForward& of) {
    return of.input.defined() || of.output.defined() || of.selective != nullptr;
  };
  return std::ranges::any_of(saved, kept) || !std::ranges::all_of(weights, &models::DeferredWeights::empty);
}

std::vector<int64_t> Stage::boundary_shape(const models::Microbatch& batch) const {
  const int64_t parts = fsdp_.tensor() != nullptr ? fsdp_.tensor()->size() : 1;
  return {batch.tokens.size(0), batch.tokens.size(1) / parts, model_.args().dim};
}

at::Tensor Stage::run_block(size_t unit, MicrobatchState& state, const SavedForward& saved,
                            BlockKind kind) const {
  return model_.blocks()[unit - 1].forward(saved.input, state.batch.context,
                                           {.kind = kind,
                                            .selective = saved.selective.get(),
                                            .attention = saved.attention.get(),
                                            .deferred = &state.weights[unit - state.units.first],
                                            .metrics = kind == BlockKind::kForward ? state.metrics : nullptr,
                                            .routing = saved.routing.get(),
                                            .counts_tokens = kind == BlockKind::kForward});
}

void Stage::forward(size_t unit, MicrobatchState& state) const {
  const TraceRange range("forward", group(unit).name());
  if (state.saved.empty()) {
    state.activation = unit == 0
                           ? model_.embedding().forward(state.batch.tokens)
                           : model_.blocks()[unit - 1].forward(state.activation, state.batch.context, {});
    return;
  }
  SavedForward& saved = state.saved[unit - state.units.first];
  if (unit == 0) {
    state.activation = saved.output = model_.embedding().forward(state.batch.tokens);
    return;
  }
  // A detached leaf ends the graph here: each block's backward is a separate call, and the previous block
  // continues with the .grad() of this input.
  saved.input = state.activation.detach().requires_grad_();
  const models::ActivationCheckpoint mode = checkpointing_.blocks[unit - 1];
  if (mode == models::ActivationCheckpoint::kNone) {
    state.activation = saved.output = run_block(unit, state, saved, BlockKind::kForward);
    return;
  }
  saved.selective = models::selective_checkpoint(mode, checkpointing_.always_recompute);
  if (!saved.selective && !state.batch.context.parts.empty())
    saved.attention = std::make_unique<models::SelectiveCheckpoint>(checkpointing_.always_recompute);
  saved.routing = std::make_unique<models::KeptRouting>();
  const at::NoGradGuard no_grad;  // no graph: only the input and what `selective` saves outlive this call
  state.activation = run_block(unit, state, saved, BlockKind::kForward);
}

at::Tensor Stage::loss(MicrobatchState& state, const at::Tensor& scale) const {
  if (state.saved.empty()) return model_.head().loss_sum(state.activation, state.batch.labels);
  const TraceRange range("forward and backward", group(state.units.end - 1).name());
  const auto [loss, grad_x, z_loss] =
      model_.head().loss_and_grad(state.activation.detach(), state.batch.labels, scale);
  state.gradient = grad_x;
  state.activation.reset();
  if (state.metrics != nullptr && z_loss.defined()) {
    const double copies =
        fsdp_.tensor() != nullptr ? fsdp_.tensor()->size() : 1;  // every TP rank has the sum
    state.metrics->record("loss_metrics/z_loss", models::LayerMetrics::Reduction::kSum,
                          z_loss.to(at::kDouble) * scale / copies);
  }
  return loss;
}

at::Tensor Stage::losses_of_rows(const MicrobatchState& state) const {
  const TraceRange range("losses of rows", group(state.units.end - 1).name());
  const at::Tensor activation = state.activation.detach();
  std::vector<at::Tensor> losses;
  for (int64_t row = 0; row < activation.size(0); ++row)
    losses.push_back(
        model_.head().loss_sum(activation.narrow(0, row, 1), state.batch.labels.narrow(0, row, 1)));
  return at::stack(losses);
}

void Stage::backward(size_t unit, MicrobatchState& state) const {
  const TraceRange range("backward", group(unit).name());
  state.weights[unit - state.units.first].set_deferring(false);
  run_backward(unit, state);
}

void Stage::input_gradient(size_t unit, MicrobatchState& state) const {
  models::DeferredWeights& deferred = state.weights[unit - state.units.first];
  if (unit == 0) {
    SavedForward saved = std::exchange(state.saved[0], {});
    if (!saved.output.requires_grad()) return;  // a frozen embedding has no graph
    deferred.add([output = std::move(saved.output), gradient = std::exchange(state.gradient, {})] {
      torch::autograd::backward({output}, {gradient});
    });
    return;
  }
  const TraceRange range("input gradient", group(unit).name());
  // wgrad of nodes that do not defer (norms) waits too, so that microbatches are summed in the order of the
  // schedule's wgrad actions.
  const std::vector<ParameterPtr>& parameters = model_.units()[unit].parameters;
  std::vector<at::Tensor> sums;
  for (const ParameterPtr& parameter : parameters)
    sums.push_back(std::exchange(parameter->weight.mutable_grad(), {}));
  deferred.set_deferring(true);
  run_backward(unit, state);
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor made = std::exchange(parameters[i]->weight.mutable_grad(), std::move(sums[i]));
    if (!made.defined()) continue;
    deferred.add([parameter = parameters[i], made = std::move(made)] {
      at::Tensor& sum = parameter->weight.mutable_grad();
      if (sum.defined())
        sum.add_(made);
      else
        sum = made;
    });
  }
}

void Stage::weight_gradients(size_t unit, MicrobatchState& state) const {
  const TraceRange range("weight gradients", group(unit).name());
  const at::NoGradGuard no_grad;
  state.weights[unit - state.units.first].make_all();
}

void Stage::run_backward(size_t unit, MicrobatchState& state) const {
  // The block's activations are freed before those of the next block are recomputed.
  SavedForward saved = std::exchange(state.saved[unit - state.units.first], {});
  if (!saved.output.defined()) {
    const TraceRange recompute("recompute", group(unit).name());
    for (models::SelectiveCheckpoint* of : {saved.selective.get(), saved.attention.get()})
      if (of != nullptr) of->start_recompute();
    saved.output = run_block(unit, state, saved, BlockKind::kRecompute);
  }
  if (saved.output.requires_grad())  // false: the input comes from a frozen embedding
    torch::autograd::backward({saved.output}, {state.gradient});
  state.gradient = saved.input.defined() ? saved.input.grad() : at::Tensor();
}

}  // namespace hyperion::trainer
