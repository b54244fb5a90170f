#include "trainer/unit_walk.h"

#include <set>

#include <fmt/format.h>

#include <torch/csrc/autograd/autograd.h>

#include "base/failpoint.h"
#include "parallel/phase.h"
#include "parallel/trace_range.h"

namespace hyperion {

struct UnitWalk::Kept {
  at::Tensor input;   // the unit's input as a detached leaf
  at::Tensor output;  // with its graph, unless the unit is run again
  std::unique_ptr<RecomputeTape> tape;
};

UnitWalk::UnitWalk(const Transformer& model, FsdpContext& fsdp, WalkOptions options)
    : model_(model), fsdp_(fsdp), options_(std::move(options)) {
  options_.checkpoint.resize(model.blocks().size(), BlockCheckpoint::kNone);
  std::map<const Parameter*, ShardedParameterPtr> known;
  for (const UnitParameters& unit : model.units())
    groups_.push_back(std::make_unique<ShardGroup>(unit.name, unit.parameters, known, fsdp));
}

std::vector<ShardedParameterPtr> UnitWalk::parameters() const {
  std::vector<ShardedParameterPtr> all;
  for (const auto& group : groups_) all.insert(all.end(), group->owned().begin(), group->owned().end());
  return all;
}

void UnitWalk::weights_changed() {
  const std::vector<ShardedParameterPtr> all = parameters();
  for (const ShardedParameterPtr& parameter : all) parameter->contents_changed();
  const auto& codec = fsdp_.options().codec;
  if (codec && codec->eager) encode_changed(fsdp_, all);
}

void UnitWalk::begin_step(int64_t step) {
  step_ = step;
  for (const auto& group : groups_) group->zero_grads();
}

void UnitWalk::phase(const char* what, size_t unit) const {
  set_phase(fmt::format("step {} {} {}", step_, what, groups_[unit]->name()));
}

// The unit's weights are there, and the next one's are on their way while it runs.
void UnitWalk::begin(size_t unit, const char* what) {
  phase(what, unit);
  groups_[unit]->finish_unshard();
  if (options_.prefetch_forward && unit + 1 < groups_.size()) groups_[unit + 1]->start_unshard();
  fsdp_.event("run", groups_[unit]->name());
}

at::Tensor UnitWalk::run_block(size_t block, const at::Tensor& input, const Microbatch& batch, Kept& kept) {
  const TraceRange range("forward", groups_[block + 1]->name());
  kept.input = input.detach().requires_grad_();
  if (options_.checkpoint[block] == BlockCheckpoint::kNone) {
    kept.output = model_.blocks()[block].forward(kept.input, batch.context);
    return kept.output;
  }
  if (options_.checkpoint[block] == BlockCheckpoint::kOperations)
    kept.tape = std::make_unique<RecomputeTape>(options_.always_recompute);
  at::NoGradGuard no_grad;
  TapeScope scope(kept.tape.get());
  return model_.blocks()[block].forward(kept.input, batch.context);
}

at::Tensor UnitWalk::backward_block(size_t block, const at::Tensor& grad, const Microbatch& batch,
                                    Kept& kept) {
  const TraceRange range("backward", groups_[block + 1]->name());
  if (!kept.output.defined()) {
    const TraceRange again("recompute", groups_[block + 1]->name());
    if (kept.tape) kept.tape->start_replay();
    TapeScope scope(kept.tape.get());
    kept.output = model_.blocks()[block].forward(kept.input, batch.context);
  }
  torch::autograd::backward({kept.output}, {grad});
  const at::Tensor grad_input = kept.input.grad();
  kept = {};
  return grad_input;
}

at::Tensor UnitWalk::forward_backward(const Microbatch& batch, const at::Tensor& scale, bool last) {
  const size_t blocks = model_.blocks().size(), head = blocks + 1;
  std::vector<Kept> kept(blocks + 1);

  failpoint("step.fwd");
  begin(0, "forward");
  at::Tensor x;
  {
    const TraceRange range("forward", groups_[0]->name());
    x = kept[0].output = model_.embedding().forward(batch.tokens);
  }
  if (reshards_after_forward()) groups_[0]->reshard();
  for (size_t block = 0; block < blocks; ++block) {
    begin(block + 1, "forward");
    x = run_block(block, x, batch, kept[block + 1]);
    if (reshards_after_forward()) groups_[block + 1]->reshard();
  }
  // The head's loss and gradient are one call, so its weights are gathered once whatever the policy.
  begin(head, "forward");
  if (options_.prefetch_backward) groups_[blocks]->start_unshard();
  auto [loss, grad] = [&] {
    const TraceRange range("forward and backward", groups_[head]->name());
    return model_.head().loss_and_grad(x.detach(), batch.labels, scale);
  }();
  groups_[head]->reshard();
  groups_[head]->reduce(last);

  failpoint("step.bwd");
  for (size_t block = blocks; block-- > 0;) {
    const size_t unit = block + 1;
    phase("backward", unit);
    groups_[unit]->finish_unshard();
    // The embedding's backward reads tokens only, so its weight is not gathered again.
    if (options_.prefetch_backward && unit > 1) groups_[unit - 1]->start_unshard();
    grad = backward_block(block, grad, batch, kept[unit]);
    groups_[unit]->reshard();
    groups_[unit]->reduce(last);
  }
  phase("backward", 0);
  {
    const TraceRange range("backward", groups_[0]->name());
    torch::autograd::backward({kept[0].output}, {grad});
  }
  groups_[0]->reshard();
  groups_[0]->reduce(last);
  fsdp_.finish_reductions();
  return loss;
}

at::Tensor UnitWalk::loss_sum(const Microbatch& batch) {
  at::NoGradGuard no_grad;
  begin(0, "validation");
  at::Tensor x = model_.embedding().forward(batch.tokens);
  groups_[0]->reshard();
  for (size_t block = 0; block < model_.blocks().size(); ++block) {
    begin(block + 1, "validation");
    const TraceRange range("forward", groups_[block + 1]->name());
    x = model_.blocks()[block].forward(x, batch.context);
    groups_[block + 1]->reshard();
  }
  begin(groups_.size() - 1, "validation");
  const at::Tensor loss = model_.head().loss_sum(x, batch.labels);
  groups_.back()->reshard();
  return loss;
}

}  // namespace hyperion
