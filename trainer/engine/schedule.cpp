#include "trainer/engine/schedule.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "base/failpoint.h"
#include "parallel/comm/step_timer.h"
#include "parallel/job/phase.h"

namespace hyperion::trainer {

Schedule training_schedule(size_t units, size_t microbatches, const ScheduleOptions& options) {
  const size_t head = units - 1;
  Schedule schedule;
  for (size_t i = 0; i < microbatches; ++i) {
    const ActionKind with_gradients =
        options.reduce_once && i + 1 < microbatches ? ActionKind::kAccumulate : ActionKind::kReduce;
    for (size_t unit = 0; unit < head; ++unit) {
      schedule.push_back({ActionKind::kForward, i, unit, unit + 1});
      if (options.reshard_after_forward) schedule.push_back({ActionKind::kReshard, i, unit});
      if (unit == 1 && i > 0 && !options.reduce_once) schedule.push_back({ActionKind::kFinishReduction, i});
    }
    // A unit's gradients are complete after its backward, so their reduce-scatter starts at once and overlaps
    // the backward of the unit before it. The embedding's backward reads no weights.
    for (size_t unit = head + 1; unit-- > 0;) {
      schedule.push_back({unit == head ? ActionKind::kLoss : ActionKind::kBackward, i, unit,
                          unit > 1 ? std::optional(unit - 1) : std::nullopt});
      schedule.push_back({ActionKind::kReshard, i, unit});
      schedule.push_back(
          {.kind = with_gradients, .microbatch = i, .unit = unit, .last = i + 1 == microbatches});
    }
    schedule.push_back({ActionKind::kRetireMicrobatch, i});
  }
  schedule.push_back({ActionKind::kFinishReduction});
  schedule.push_back({ActionKind::kSumReplicated});
  return schedule;
}

Schedule evaluation_schedule(size_t units) {
  const size_t head = units - 1;
  Schedule schedule;
  for (size_t unit = 0; unit < head; ++unit) {
    schedule.push_back({ActionKind::kForward, 0, unit, unit + 1});
    schedule.push_back({ActionKind::kReshard, 0, unit});
  }
  schedule.push_back({ActionKind::kLoss, 0, head});
  schedule.push_back({ActionKind::kReshard, 0, head});
  schedule.push_back({ActionKind::kRetireMicrobatch, 0});
  return schedule;
}

namespace {

// A pipeline's actions as those of units.
class Expansion {
 public:
  Expansion(const Pipeline& pipeline, int rank, const parallel::PipelineSchedule& lists)
      : pipeline_(pipeline), stages_(pipeline.stages), rank_(rank), lists_(lists) {
    for (const parallel::PipelineAction& action : actions()) {
      const auto stage = static_cast<size_t>(action.stage);
      const auto microbatch = static_cast<size_t>(action.microbatch);
      if (action.op == Op::kBackward || action.op == Op::kInputGradient) last_of_head_[stage] = microbatch;
      if (action.op == Op::kBackward || action.op == Op::kWeightGradient) last_of_blocks_[stage] = microbatch;
    }
  }

  Schedule made() {
    for (index_ = 0; index_ < actions().size(); ++index_) add(actions()[index_]);
    if (trains()) made_.insert(made_.end(), {{ActionKind::kFinishReduction}, {ActionKind::kSumReplicated}});
    return std::move(made_);
  }

 private:
  using Op = parallel::PipelineOp;
  const std::vector<parallel::PipelineAction>& actions() const {
    return lists_.ranks[static_cast<size_t>(rank_)];
  }
  void emit(ActionKind kind, size_t unit = 0, std::optional<size_t> prefetch = {}, bool last = false) {
    if (pipeline_.gathers_stages) prefetch.reset();
    made_.push_back({kind, microbatch_, unit, prefetch, stage_, last});
  }
  void free_after_use(size_t unit) {
    if (!pipeline_.gathers_stages) emit(ActionKind::kReshard, unit);
  }
  void for_units(ActionKind kind) {  // whose weights several microbatches use
    if (!pipeline_.gathers_stages) return;
    microbatch_ = 0;
    for (size_t unit = stages_[stage_].first; unit < stages_[stage_].end; ++unit) emit(kind, unit);
  }
  bool is_last_stage() const { return stage_ + 1 == stages_.size(); }
  bool is_here(size_t stage) const { return lists_.rank_of_stage[stage] == rank_; }
  bool trains() const { return !last_of_blocks_.empty(); }

  void add(const parallel::PipelineAction& action) {
    stage_ = static_cast<size_t>(action.stage);
    microbatch_ = static_cast<size_t>(action.microbatch);
    switch (action.op) {
      case Op::kForward:
        forward();
        break;
      case Op::kBackward:
      case Op::kInputGradient:
        backward(/*divided=*/action.op == Op::kInputGradient);
        break;
      case Op::kWeightGradient:
        weight_gradients();
        break;
      case Op::kSendForward:
        emit(ActionKind::kSendActivation);
        if (!trains()) emit(ActionKind::kRetireMicrobatch);
        break;
      case Op::kReceiveForward:
        emit(ActionKind::kReceiveActivation);
        break;
      case Op::kSendBackward:
        emit(ActionKind::kSendGradient);
        end_part();
        break;
      case Op::kReceiveBackward:
        emit(ActionKind::kReceiveGradient);
        break;
      case Op::kUnshard:
        for_units(ActionKind::kGather);
        break;
      case Op::kReshard:
        for_units(ActionKind::kReshard);
        break;
      case Op::kReduce:  // with the unit's last backward
        break;
    }
  }

  // In training the head runs in the stage's backward.
  void forward() {
    const auto [first, end] = stages_[stage_];
    const size_t blocks_end = is_last_stage() ? end - 1 : end;
    const bool head_is_next = is_last_stage() && (!trains() || backward_is_next());
    for (size_t unit = first; unit < blocks_end; ++unit) {
      emit(ActionKind::kForward, unit,
           unit + 1 < blocks_end || head_is_next ? std::optional(unit + 1) : std::nullopt);
      free_after_use(unit);
      finish_earlier_reduction(unit);
    }
    if (is_last_stage()) {
      if (trains()) return;
      emit(ActionKind::kLoss, blocks_end);
      free_after_use(blocks_end);
      emit(ActionKind::kRetireMicrobatch);
    } else if (is_here(stage_ + 1)) {
      emit(ActionKind::kSendActivation);
      if (!trains()) emit(ActionKind::kRetireMicrobatch);
    }
  }

  // The head has no halves.
  void backward(bool divided) {
    const auto [first, end] = stages_[stage_];
    for (size_t unit = end; unit-- > first;) {
      emit(is_head(unit) ? ActionKind::kLoss
           : divided     ? ActionKind::kInputGradient
                         : ActionKind::kBackward,
           unit, unit > std::max<size_t>(first, 1) ? std::optional(unit - 1) : std::nullopt);
      free_after_use(unit);
      if (is_head(unit) || !divided)
        reduce(unit);
      else
        finish_earlier_reduction(unit);
    }
    const bool hands_over = stage_ > 0 && is_here(stage_ - 1);
    if (hands_over) emit(ActionKind::kSendGradient);
    parts_left_[{stage_, microbatch_}] = stage_ == 0 || hands_over ? 1 : 2;
    if (!divided) end_part();
  }

  void weight_gradients() {
    const auto [first, end] = stages_[stage_];
    for (size_t unit = end; unit-- > first;) {
      if (is_head(unit)) continue;
      emit(ActionKind::kWeightGradients, unit);
      reduce(unit);
    }
    end_part();
  }

  bool is_head(size_t unit) const { return is_last_stage() && unit + 1 == stages_[stage_].end; }

  void reduce(size_t unit) {
    const bool last = (is_head(unit) ? last_of_head_ : last_of_blocks_).at(stage_) == microbatch_;
    const bool reduces = last || !pipeline_.reduces_once;
    emit(reduces ? ActionKind::kReduce : ActionKind::kAccumulate, unit, {}, last);
    if (!reduces) return;
    in_flight_ = true;
    earlier_in_flight_ = false;  // each reduction waits for the one before
  }

  // The last reduction of a microbatch that has ended overlaps one block (training_schedule()).
  void finish_earlier_reduction(size_t unit) {
    if (!earlier_in_flight_ || unit == 0) return;
    emit(ActionKind::kFinishReduction);
    in_flight_ = earlier_in_flight_ = false;
  }

  // A microbatch ends in a stage with its last weight gradients and, where another rank takes it, with the
  // sending of its gradient: the weight gradients read memory that was received.
  void end_part() {
    if (--parts_left_.at({stage_, microbatch_}) > 0) return;
    emit(ActionKind::kRetireMicrobatch);
    earlier_in_flight_ = in_flight_;
  }

  bool backward_is_next() const {
    for (size_t i = index_ + 1; i < actions().size(); ++i)
      if (const auto& next = actions()[i]; parallel::is_compute(next.op))
        return (next.op == Op::kBackward || next.op == Op::kInputGradient) &&
               static_cast<size_t>(next.stage) == stage_ &&
               static_cast<size_t>(next.microbatch) == microbatch_;
    return false;
  }

  const Pipeline& pipeline_;
  const std::vector<UnitRange>& stages_;
  int rank_;
  const parallel::PipelineSchedule& lists_;
  // By stage: the microbatch whose gradients come last, of the head and of all else.
  std::map<size_t, size_t> last_of_head_, last_of_blocks_;
  std::map<std::pair<size_t, size_t>, int> parts_left_;  // by stage and microbatch, after its backward
  Schedule made_;
  bool in_flight_ = false;                         // a reduction
  bool earlier_in_flight_ = false;                 // that of a microbatch that has ended
  size_t index_ = 0, stage_ = 0, microbatch_ = 0;  // of the action that is added
};

}  // namespace

Schedule pipeline_schedule(const Pipeline& pipeline, int rank, const parallel::PipelineSchedule& lists) {
  return Expansion(pipeline, rank, lists).made();
}

ScheduleRunner::ScheduleRunner(Stage& stage, const ScheduleOptions& options)
    : stage_(stage),
      stages_({{0, stage.model().units().size()}}),
      rank_of_stage_({0}),
      make_([=, units = stages_[0].end](bool training, size_t microbatches) {
        if (!training && microbatches != 1)
          throw_bug("losses of {} microbatches without a pipeline, which takes one", microbatches);
        return Plan{training ? training_schedule(units, microbatches, options) : evaluation_schedule(units)};
      }) {}

ScheduleRunner::ScheduleRunner(Stage& stage, const Pipeline& pipeline, const StageGroups& groups,
                               at::Device device)
    : stage_(stage),
      stages_(pipeline.stages),
      rank_of_stage_(pipeline.rank_of_stage),
      rank_(groups.up.rank()),
      make_([pipeline, rank = rank_](bool training, size_t microbatches) {
        const parallel::PipelineSchedule lists = pipeline.make(training, microbatches);
        return Plan{pipeline_schedule(pipeline, rank, lists),
                    parallel::max_microbatches_in_flight(lists)[static_cast<size_t>(rank)]};
      }) {
  transfers_.emplace(groups, device);
  device_ = device.type();
}

const ScheduleRunner::Plan& ScheduleRunner::plan(bool training, size_t microbatches) {
  Plan& plan = plans_[{training, microbatches}];
  if (plan.actions.empty()) plan = make_(training, microbatches);
  return plan;
}

std::vector<at::Tensor> ScheduleRunner::train_step(int64_t step, size_t microbatches, const Fetch& microbatch,
                                                   const at::Tensor& scale, models::LayerMetrics* metrics) {
  step_ = step;
  stage_.drop_gradients();
  return run(plan(/*training=*/true, microbatches), {microbatch, scale, metrics});
}

std::vector<at::Tensor> ScheduleRunner::losses(size_t microbatches, const Fetch& microbatch) {
  const at::NoGradGuard no_grad;
  return run(plan(/*training=*/false, microbatches), {microbatch, /*scale=*/{}, /*metrics=*/nullptr});
}

void ScheduleRunner::set_phase(const char* what, const Action& action, const std::string& name) const {
  parallel::set_phase(stages_.size() == 1 ? fmt::format("step {} {} {}", step_, what, name)
                                          : fmt::format("step {} {} {} (stage {}, microbatch {})", step_,
                                                        what, name, action.stage, action.microbatch));
}

// Waits for the weights of the action's unit and starts the all-gather of those that it prefetches.
void ScheduleRunner::gather(const Action& action, const char* phase) const {
  set_phase(phase, action, stage_.group(action.unit).name());
  failpoint("step.gather");
  stage_.group(action.unit).finish_unshard();
  if (action.prefetch) stage_.group(*action.prefetch).start_unshard();
}

MicrobatchState& ScheduleRunner::state(const Action& action, const Source& source) {
  const Key key{action.stage, action.microbatch};
  const auto found = active_.find(key);
  if (found != active_.end()) return found->second.state;
  MicrobatchState state = stage_.start_microbatch(stages_[action.stage], source.microbatch(action.microbatch),
                                                  source.trains(), source.metrics);
  return active_.emplace(key, ActiveMicrobatch{.state = std::move(state)}).first->second.state;
}

// Between two ranks a receive is only started here: what needs it waits for it.
void ScheduleRunner::transfer(const Action& action, const Source& source) {
  const bool forward =
      action.kind == ActionKind::kSendActivation || action.kind == ActionKind::kReceiveActivation;
  const bool sends = action.kind == ActionKind::kSendActivation || action.kind == ActionKind::kSendGradient;
  MicrobatchState& own = state(action, source);
  const size_t other = forward == sends ? action.stage + 1 : action.stage - 1;
  const int peer = rank_of_stage_[other];
  set_phase(sends ? "send" : "receive", action, forward ? "activation" : "gradient");
  if (!sends) {
    ActiveMicrobatch& active = active_.at({action.stage, action.microbatch});
    StageTransfers::Receiving receiving =
        transfers_->receive(stage_.boundary_shape(own.batch), stage_.boundary_options(), peer);
    active.received.push_back(receiving.tensor);
    active.pending = std::move(receiving.pending);
    (forward ? own.activation : own.gradient) = std::move(receiving.tensor);
    return;
  }
  const at::Tensor sent = std::exchange(forward ? own.activation : own.gradient, {}).detach();
  if (peer != rank_) {
    parallel::RankWait wait(device_, parallel::RankWait::For::kTransfer);
    transfers_->send(sent.contiguous(), peer);
    return wait.done();
  }
  MicrobatchState& next =
      state({.kind = action.kind, .microbatch = action.microbatch, .stage = other}, source);
  (forward ? next.activation : next.gradient) = sent;
}

// Waits for the tensor that the action's microbatch receives.
MicrobatchState& ScheduleRunner::ready_state(const Action& action, const Source& source) {
  MicrobatchState& state = this->state(action, source);
  ActiveMicrobatch& active = active_.at({action.stage, action.microbatch});
  if (!active.pending.done()) {
    set_phase("wait for the input of", action, stage_.group(action.unit).name());
    parallel::RankWait wait(device_, parallel::RankWait::For::kTransfer);
    active.pending.wait();
    wait.done();
  }
  return state;
}

void ScheduleRunner::begin(const Action& action, const Plan& plan) {
  active_.at({action.stage, action.microbatch}).has_begun = true;
  const auto in_flight =
      std::ranges::count_if(active_, [](const auto& active) { return active.second.has_begun; });
  if (in_flight > plan.max_in_flight)
    throw_bug("{} microbatches are kept at once, and the schedule has {}", in_flight, plan.max_in_flight);
}

void ScheduleRunner::retire(const Action& action) {
  const auto active = active_.find({action.stage, action.microbatch});
  if (active->second.state.keeps_saved())
    throw_bug("microbatch {} was retired in stage {} with saved tensors", action.microbatch, action.stage);
  std::vector<at::Tensor> received = std::move(active->second.received);
  active_.erase(active);
  for (at::Tensor& tensor : received) transfers_->recycle(std::move(tensor));
}

void ScheduleRunner::run_forward(const Action& action, const Plan& plan, const Source& source) {
  MicrobatchState& state = ready_state(action, source);
  if (source.trains() && action.unit == stages_[action.stage].first) {
    failpoint("step.fwd");
    begin(action, plan);
  }
  gather(action, source.forward_phase());
  stage_.forward(action.unit, state);
}

at::Tensor ScheduleRunner::run_loss(const Action& action, const Source& source) {
  MicrobatchState& state = ready_state(action, source);
  gather(action, source.forward_phase());
  if (source.metrics != nullptr && source.metrics->losses_of_rows)
    source.metrics->row_losses[action.microbatch] = stage_.losses_of_rows(state);
  return stage_.loss(state, source.scale);
}

// Runs a complete backward, or its first half, which leaves wgrads for run_weight_gradients().
void ScheduleRunner::run_backward(const Action& action, const Source& source) {
  const bool input_alone = action.kind == ActionKind::kInputGradient;
  const char* const phase = input_alone ? "input gradient" : "backward";
  MicrobatchState& state = ready_state(action, source);
  if (begins_backward(action, state)) failpoint("step.bwd");
  if (action.unit == 0)
    set_phase(phase, action, stage_.group(action.unit).name());
  else
    gather(action, phase);
  if (input_alone)
    stage_.input_gradient(action.unit, state);
  else
    stage_.backward(action.unit, state);
}

void ScheduleRunner::run_weight_gradients(const Action& action, const Source& source) {
  MicrobatchState& state = this->state(action, source);
  set_phase("weight gradients", action, stage_.group(action.unit).name());
  if (begins_backward(action, state)) failpoint("step.wgrad");
  stage_.weight_gradients(action.unit, state);
}

bool ScheduleRunner::begins_backward(const Action& action, const MicrobatchState& state) const {
  return stage_.is_head(action.unit + 1) || action.unit + 1 == state.units.end;
}

std::vector<at::Tensor> ScheduleRunner::run(const Plan& plan, const Source& source) {
  std::map<size_t, at::Tensor> losses;  // by microbatch
  parallel::ScheduleSpan span(device_);
  for (const Action& action : plan.actions) {
    const size_t unit = action.unit;
    switch (action.kind) {
      case ActionKind::kForward:
        run_forward(action, plan, source);
        break;
      case ActionKind::kLoss:
        losses[action.microbatch] = run_loss(action, source);
        break;
      case ActionKind::kBackward:
      case ActionKind::kInputGradient:
        run_backward(action, source);
        break;
      case ActionKind::kWeightGradients:
        run_weight_gradients(action, source);
        break;
      case ActionKind::kGather:
        stage_.group(unit).start_unshard();
        break;
      case ActionKind::kReshard:
        stage_.group(unit).reshard();
        break;
      case ActionKind::kAccumulate:
        stage_.group(unit).accumulate();
        break;
      case ActionKind::kReduce:
        stage_.group(unit).reduce(/*last_microbatch=*/action.last);
        break;
      case ActionKind::kFinishReduction:
        stage_.finish_reduction();
        break;
      case ActionKind::kRetireMicrobatch:
        retire(action);
        break;
      case ActionKind::kSumReplicated:
        if (!stage_.has_replicated_gradients()) break;
        parallel::set_phase(fmt::format("step {} sum of replicated gradients", step_));
        failpoint("step.sum");
        stage_.sum_replicated_gradients();
        break;
      case ActionKind::kSendActivation:
      case ActionKind::kReceiveActivation:
      case ActionKind::kSendGradient:
      case ActionKind::kReceiveGradient:
        transfer(action, source);
        break;
    }
  }
  if (transfers_) {
    parallel::RankWait wait(device_, parallel::RankWait::For::kTransfer);
    transfers_->finish();
    wait.done();
  }
  span.done();
  std::vector<at::Tensor> ordered;
  for (auto& [microbatch, loss] : losses) ordered.push_back(std::move(loss));
  return ordered;
}

}  // namespace hyperion::trainer
