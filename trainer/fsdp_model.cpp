#include "trainer/fsdp_model.h"

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/failpoint.h"
#include "parallel/phase.h"
#include "parallel/trace_range.h"

namespace hyperion::trainer {

struct FsdpModel::SavedForward {
  at::Tensor input;   // the unit's input as a detached leaf
  at::Tensor output;  // with its graph, unless the unit is run again
  std::unique_ptr<models::SelectiveCheckpoint> selective;
};

FsdpModel::FsdpModel(const models::Transformer& model, parallel::FsdpContext& fsdp, FsdpModelOptions options)
    : model_(model), fsdp_(fsdp), options_(std::move(options)) {
  options_.checkpointing.blocks.resize(model.blocks().size(), models::ActivationCheckpoint::kNone);
  std::map<const Parameter*, parallel::ShardedParameterPtr> known;
  for (const models::UnitParameters& unit : model.units())
    groups_.push_back(std::make_unique<parallel::ShardGroup>(unit.name, unit.parameters, known, fsdp));
  for (const auto& group : groups_) {
    const parallel::LocalGradients& own = group->local_gradients();
    gradients_.divided.insert(gradients_.divided.end(), own.divided.begin(), own.divided.end());
    gradients_.replicated.insert(gradients_.replicated.end(), own.replicated.begin(), own.replicated.end());
  }
}

std::vector<parallel::ShardedParameterPtr> FsdpModel::parameters() const {
  std::vector<parallel::ShardedParameterPtr> all;
  for (const auto& group : groups_) all.insert(all.end(), group->owned().begin(), group->owned().end());
  return all;
}

void FsdpModel::weights_changed() {
  const std::vector<parallel::ShardedParameterPtr> all = parameters();
  for (const parallel::ShardedParameterPtr& parameter : all) parameter->contents_changed();
  const auto& codec = fsdp_.options().codec;
  if (codec && codec->eager) parallel::encode_changed_weights(fsdp_, all);
}

void FsdpModel::begin_step(int64_t step) {
  step_ = step;
  drop_gradients();
}

void FsdpModel::drop_gradients() {
  for (const auto& group : groups_) group->drop_grads();
}

void FsdpModel::set_unit_phase(const char* what, size_t unit) const {
  parallel::set_phase(fmt::format("step {} {} {}", step_, what, groups_[unit]->name()));
}

// Waits for the weights of `unit` and starts the all-gather of those of `next`, which runs while `unit`
// computes. No more than two units are gathered at once, unless weights stay gathered after forward.
void FsdpModel::unshard_and_prefetch(size_t unit, std::optional<size_t> next) {
  groups_[unit]->finish_unshard();
  if (next) groups_[*next]->start_unshard();
}

at::Tensor FsdpModel::forward_block(size_t block, const at::Tensor& input, const models::Microbatch& batch,
                                    SavedForward& saved) {
  const parallel::TraceRange range("forward", groups_[block + 1]->name());
  // A detached leaf ends the graph here: each block's backward is a call of its own, and its input's .grad()
  // is what the block before continues with.
  saved.input = input.detach().requires_grad_();
  if (options_.checkpointing.blocks[block] == models::ActivationCheckpoint::kNone) {
    saved.output = model_.blocks()[block].forward(saved.input, batch.context);
    return saved.output;
  }
  saved.selective = models::selective_checkpoint(options_.checkpointing.blocks[block],
                                                 options_.checkpointing.always_recompute);
  at::NoGradGuard no_grad;  // no graph: nothing but the input and what `selective` saves outlives this call
  return model_.blocks()[block].forward(saved.input, batch.context, {.selective = saved.selective.get()});
}

at::Tensor FsdpModel::backward_block(size_t block, const at::Tensor& grad, const models::Microbatch& batch,
                                     SavedForward& saved) {
  const parallel::TraceRange range("backward", groups_[block + 1]->name());
  if (!saved.output.defined()) {
    const parallel::TraceRange recompute("recompute", groups_[block + 1]->name());
    if (saved.selective) saved.selective->start_recompute();
    saved.output = model_.blocks()[block].forward(
        saved.input, batch.context,
        {.kind = models::BlockRun::Kind::kRecompute, .selective = saved.selective.get()});
  }
  torch::autograd::backward({saved.output}, {grad});
  at::Tensor grad_input = saved.input.grad();
  saved = {};  // frees the block's activations before the next block's are computed again
  return grad_input;
}

at::Tensor FsdpModel::forward_backward(const models::Microbatch& batch, const at::Tensor& scale, bool last) {
  const size_t blocks = model_.blocks().size(), head = blocks + 1;  // unit 0 is the embedding
  std::vector<SavedForward> saved(blocks + 1);

  failpoint("step.fwd");
  set_unit_phase("forward", 0);
  unshard_and_prefetch(0, 1);
  at::Tensor x;
  {
    const parallel::TraceRange range("forward", groups_[0]->name());
    x = saved[0].output = model_.embedding().forward(batch.tokens);
  }
  if (options_.reshard_after_forward) groups_[0]->reshard();
  for (size_t block = 0; block < blocks; ++block) {
    const size_t unit = block + 1;
    set_unit_phase("forward", unit);
    unshard_and_prefetch(unit, unit + 1);
    x = forward_block(block, x, batch, saved[unit]);
    if (options_.reshard_after_forward) groups_[unit]->reshard();
  }

  // The head's loss and gradient are one call, so its weights are gathered once whatever the options.
  // Meanwhile the last block's weights are gathered again, for its backward.
  set_unit_phase("forward", head);
  unshard_and_prefetch(head, blocks);
  auto [loss, grad] = [&] {
    const parallel::TraceRange range("forward and backward", groups_[head]->name());
    return model_.head().loss_and_grad(x.detach(), batch.labels, scale);
  }();
  groups_[head]->reshard();
  groups_[head]->reduce(last);

  // From the last block to the first: this block's gradients are complete after its backward, so their
  // reduce-scatter starts at once and overlaps the backward of the block before it.
  failpoint("step.bwd");
  for (size_t block = blocks; block-- > 0;) {
    const size_t unit = block + 1;
    set_unit_phase("backward", unit);
    // The embedding's backward reads tokens only, so its weight is not gathered again.
    unshard_and_prefetch(unit, unit > 1 ? std::optional(unit - 1) : std::nullopt);
    grad = backward_block(block, grad, batch, saved[unit]);
    groups_[unit]->reshard();
    groups_[unit]->reduce(last);
  }
  set_unit_phase("backward", 0);
  {
    const parallel::TraceRange range("backward", groups_[0]->name());
    torch::autograd::backward({saved[0].output}, {grad});
  }
  groups_[0]->reshard();  // it is still gathered where weights stay gathered after forward
  groups_[0]->reduce(last);
  fsdp_.finish_reduction();
  if (last && fsdp_.tensor() != nullptr) {
    parallel::set_phase(fmt::format("step {} sum of replicated gradients", step_));
    failpoint("step.sum");
    fsdp_.sum_over_tensor_ranks(gradients_.replicated);
  }
  return loss;
}

at::Tensor FsdpModel::loss_sum(const models::Microbatch& batch) {
  at::NoGradGuard no_grad;
  const size_t head = groups_.size() - 1;
  set_unit_phase("validation", 0);
  unshard_and_prefetch(0, 1);
  at::Tensor x = model_.embedding().forward(batch.tokens);
  groups_[0]->reshard();
  for (size_t block = 0; block < model_.blocks().size(); ++block) {
    const size_t unit = block + 1;
    set_unit_phase("validation", unit);
    unshard_and_prefetch(unit, unit + 1);
    const parallel::TraceRange range("forward", groups_[unit]->name());
    x = model_.blocks()[block].forward(x, batch.context);
    groups_[unit]->reshard();
  }
  set_unit_phase("validation", head);
  unshard_and_prefetch(head, std::nullopt);
  const at::Tensor loss = model_.head().loss_sum(x, batch.labels);
  groups_[head]->reshard();
  return loss;
}

}  // namespace hyperion::trainer
