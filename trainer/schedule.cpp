#include "trainer/schedule.h"

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

Schedule training_schedule(size_t units, size_t microbatches, bool reshard_after_forward, bool reduce_once) {
  const size_t head = units - 1;
  Schedule schedule;
  for (size_t i = 0; i < microbatches; ++i) {
    const Do with_gradients = reduce_once && i + 1 < microbatches ? Do::kAccumulate : Do::kReduce;
    for (size_t unit = 0; unit < head; ++unit) {
      schedule.push_back({Do::kForward, i, unit, unit + 1});
      if (reshard_after_forward) schedule.push_back({Do::kFree, i, unit});
    }
    // A unit's gradients are complete after its backward, so their reduce-scatter starts at once and overlaps
    // the backward of the unit before it. The embedding's backward reads no weights.
    for (size_t unit = head + 1; unit-- > 0;) {
      schedule.push_back({unit == head ? Do::kLoss : Do::kBackward, i, unit,
                          unit > 1 ? std::optional(unit - 1) : std::nullopt});
      schedule.push_back({Do::kFree, i, unit});
      schedule.push_back(
          {.what = with_gradients, .microbatch = i, .unit = unit, .last = i + 1 == microbatches});
    }
    schedule.push_back({Do::kFinish, i});
  }
  schedule.push_back({Do::kSumReplicated});
  return schedule;
}

Schedule evaluation_schedule(size_t units) {
  const size_t head = units - 1;
  Schedule schedule;
  for (size_t unit = 0; unit < head; ++unit) {
    schedule.push_back({Do::kForward, 0, unit, unit + 1});
    schedule.push_back({Do::kFree, 0, unit});
  }
  schedule.push_back({Do::kLoss, 0, head});
  schedule.push_back({Do::kFree, 0, head});
  schedule.push_back({Do::kFinish, 0});
  return schedule;
}

namespace {

// A pipeline's actions as those of units.
class Expansion {
 public:
  Expansion(const Pipeline& pipeline, int rank, const parallel::PipelineSchedule& lists)
      : pipeline_(pipeline), stages_(pipeline.stages), rank_(rank), lists_(lists) {
    for (const parallel::PipelineAction& action : actions()) {
      if (action.op != Op::kBackward) continue;
      trains_ = true;
      last_backward_[static_cast<size_t>(action.stage)] = action.microbatch;
    }
  }

  Schedule made() {
    for (index_ = 0; index_ < actions().size(); ++index_) add(actions()[index_]);
    if (trains_) made_.push_back({Do::kSumReplicated});
    return std::move(made_);
  }

 private:
  using Op = parallel::PipelineOp;
  const std::vector<parallel::PipelineAction>& actions() const {
    return lists_.ranks[static_cast<size_t>(rank_)];
  }
  void emit(Do what, size_t unit = 0, std::optional<size_t> prefetch = {}, bool last = false) {
    if (pipeline_.gathers_stages) prefetch.reset();
    made_.push_back({what, microbatch_, unit, prefetch, stage_, last});
  }
  void free_after_use(size_t unit) {
    if (!pipeline_.gathers_stages) emit(Do::kFree, unit);
  }
  void for_units(Do what) {  // of what several microbatches use
    if (!pipeline_.gathers_stages) return;
    microbatch_ = 0;
    for (size_t unit = stages_[stage_].first; unit < stages_[stage_].end; ++unit) emit(what, unit);
  }
  bool is_last_stage() const { return stage_ + 1 == stages_.size(); }
  bool is_here(size_t stage) const { return lists_.rank_of_stage[stage] == rank_; }

  void add(const parallel::PipelineAction& action) {
    stage_ = static_cast<size_t>(action.stage);
    microbatch_ = static_cast<size_t>(action.microbatch);
    switch (action.op) {
      case Op::kForward:
        forward();
        break;
      case Op::kBackward:
        backward();
        break;
      case Op::kSendForward:
        emit(Do::kSendActivation);
        if (!trains_) emit(Do::kFinish);
        break;
      case Op::kReceiveForward:
        emit(Do::kReceiveActivation);
        break;
      case Op::kSendBackward:
        emit(Do::kSendGradient);
        emit(Do::kFinish);
        break;
      case Op::kReceiveBackward:
        emit(Do::kReceiveGradient);
        break;
      case Op::kGather:
        for_units(Do::kGather);
        break;
      case Op::kFree:
        for_units(Do::kFree);
        break;
      case Op::kReduce:  // with the unit's last backward
        break;
      case Op::kInputGradient:
      case Op::kWeightGradient:
        throw_bug("a backward in two halves is not available");
    }
  }

  // In training the head runs in the stage's backward.
  void forward() {
    const auto [first, end] = stages_[stage_];
    const size_t blocks_end = is_last_stage() ? end - 1 : end;
    const bool head_is_next = is_last_stage() && (!trains_ || backward_is_next());
    for (size_t unit = first; unit < blocks_end; ++unit) {
      emit(Do::kForward, unit,
           unit + 1 < blocks_end || head_is_next ? std::optional(unit + 1) : std::nullopt);
      free_after_use(unit);
    }
    if (is_last_stage()) {
      if (trains_) return;
      emit(Do::kLoss, blocks_end);
      free_after_use(blocks_end);
      emit(Do::kFinish);
    } else if (is_here(stage_ + 1)) {
      emit(Do::kSendActivation);
      if (!trains_) emit(Do::kFinish);
    }
  }

  void backward() {
    const auto [first, end] = stages_[stage_];
    const bool last = last_backward_.at(stage_) == static_cast<int>(microbatch_);
    for (size_t unit = end; unit-- > first;) {
      emit(is_last_stage() && unit + 1 == end ? Do::kLoss : Do::kBackward, unit,
           unit > std::max<size_t>(first, 1) ? std::optional(unit - 1) : std::nullopt);
      free_after_use(unit);
      emit(last || !pipeline_.reduces_once ? Do::kReduce : Do::kAccumulate, unit, {}, last);
    }
    if (stage_ > 0 && !is_here(stage_ - 1)) return;  // it ends with its kSendBackward
    if (stage_ > 0) emit(Do::kSendGradient);
    emit(Do::kFinish);
  }

  bool backward_is_next() const {
    for (size_t i = index_ + 1; i < actions().size(); ++i)
      if (const auto& next = actions()[i]; parallel::is_compute(next.op))
        return next.op == Op::kBackward && static_cast<size_t>(next.stage) == stage_ &&
               static_cast<size_t>(next.microbatch) == microbatch_;
    return false;
  }

  const Pipeline& pipeline_;
  const std::vector<UnitRange>& stages_;
  int rank_;
  const parallel::PipelineSchedule& lists_;
  std::map<size_t, int> last_backward_;  // by stage: of which microbatch
  bool trains_ = false;
  Schedule made_;
  size_t index_ = 0, stage_ = 0, microbatch_ = 0;  // of the action that is added
};

}  // namespace

Schedule pipeline_schedule(const Pipeline& pipeline, int rank, const parallel::PipelineSchedule& lists) {
  return Expansion(pipeline, rank, lists).made();
}

ScheduleRunner::ScheduleRunner(Stage& stage, bool reshard_after_forward, bool reduce_once)
    : stage_(stage),
      stages_({{0, stage.model().units().size()}}),
      rank_of_stage_({0}),
      make_([=, units = stages_[0].end](bool training, size_t microbatches) {
        return training ? training_schedule(units, microbatches, reshard_after_forward, reduce_once)
                        : evaluation_schedule(units);
      }) {}

ScheduleRunner::ScheduleRunner(Stage& stage, const Pipeline& pipeline, parallel::Communicator& ranks,
                               at::Device device)
    : stage_(stage),
      stages_(pipeline.stages),
      rank_of_stage_(pipeline.rank_of_stage),
      rank_(ranks.rank()),
      make_([pipeline, rank = rank_](bool training, size_t microbatches) {
        return pipeline_schedule(pipeline, rank, pipeline.make(training, microbatches));
      }) {
  transfers_.emplace(ranks, device);
  device_ = device.type();
}

const Schedule& ScheduleRunner::schedule(bool training, size_t microbatches) {
  Schedule& schedule = made_[{training, microbatches}];
  if (schedule.empty()) schedule = make_(training, microbatches);
  return schedule;
}

std::vector<at::Tensor> ScheduleRunner::train_step(int64_t step, size_t microbatches, const Fetch& microbatch,
                                                   const at::Tensor& scale, models::LayerMetrics* metrics) {
  step_ = step;
  stage_.drop_gradients();
  return run(schedule(/*training=*/true, microbatches), {microbatch, scale, metrics});
}

std::vector<at::Tensor> ScheduleRunner::losses(size_t microbatches, const Fetch& microbatch) {
  const at::NoGradGuard no_grad;
  return run(schedule(/*training=*/false, microbatches), {microbatch, /*scale=*/{}, /*metrics=*/nullptr});
}

void ScheduleRunner::set_phase(const char* what, const Action& action, const std::string& name) const {
  parallel::set_phase(stages_.size() == 1 ? fmt::format("step {} {} {}", step_, what, name)
                                          : fmt::format("step {} {} {} (stage {}, microbatch {})", step_,
                                                        what, name, action.stage, action.microbatch));
}

// Waits for the weights of the action's unit and starts the all-gather of those that it prefetches.
void ScheduleRunner::gather(const Action& action, const char* phase) const {
  set_phase(phase, action, stage_.group(action.unit).name());
  stage_.group(action.unit).finish_unshard();
  if (action.prefetch) stage_.group(*action.prefetch).start_unshard();
}

Slot& ScheduleRunner::slot(const Action& action, const StepInput& input) {
  const Key key{action.stage, action.microbatch};
  const auto found = running_.find(key);
  if (found != running_.end()) return found->second.slot;
  Slot slot =
      stage_.slot(stages_[action.stage], input.microbatch(action.microbatch), input.trains(), input.metrics);
  return running_.emplace(key, Running{.slot = std::move(slot)}).first->second.slot;
}

// Between two ranks a receive is only started here: what needs it waits for it.
void ScheduleRunner::transfer(const Action& action, const StepInput& input) {
  const bool forward = action.what == Do::kSendActivation || action.what == Do::kReceiveActivation;
  const bool sends = action.what == Do::kSendActivation || action.what == Do::kSendGradient;
  Slot& own = slot(action, input);
  const size_t other = forward == sends ? action.stage + 1 : action.stage - 1;
  const int peer = rank_of_stage_[other];
  set_phase(sends ? "send" : "receive", action, forward ? "activation" : "gradient");
  if (!sends) {
    Running& running = running_.at({action.stage, action.microbatch});
    StageTransfers::Receiving receiving =
        transfers_->receive(stage_.boundary_shape(own.batch), stage_.boundary_options(), peer);
    running.received.push_back(receiving.tensor);
    running.pending = std::move(receiving.pending);
    (forward ? own.activation : own.gradient) = std::move(receiving.tensor);
    return;
  }
  const at::Tensor sent = std::exchange(forward ? own.activation : own.gradient, {}).detach();
  if (peer != rank_) {
    parallel::RankWait wait(device_, parallel::RankWait::For::kTransfer);
    transfers_->send(sent.contiguous(), peer);
    return wait.done();
  }
  Slot& next = slot({.what = action.what, .microbatch = action.microbatch, .stage = other}, input);
  (forward ? next.activation : next.gradient) = sent;
}

// Waits for what is on its way to the action's slot.
Slot& ScheduleRunner::ready(const Action& action, const StepInput& input) {
  Slot& slot = this->slot(action, input);
  Running& running = running_.at({action.stage, action.microbatch});
  if (!running.pending.done()) {
    set_phase("wait for the input of", action, stage_.group(action.unit).name());
    parallel::RankWait wait(device_, parallel::RankWait::For::kTransfer);
    running.pending.wait();
    wait.done();
  }
  return slot;
}

void ScheduleRunner::finish(const Action& action) {
  stage_.finish_reduction();
  const auto running = running_.find({action.stage, action.microbatch});
  std::vector<at::Tensor> received = std::move(running->second.received);
  running_.erase(running);
  for (at::Tensor& tensor : received) transfers_->recycle(std::move(tensor));
}

std::vector<at::Tensor> ScheduleRunner::run(const Schedule& schedule, const StepInput& input) {
  const bool training = input.trains();
  const char* const forward = training ? "forward" : "validation";
  std::map<size_t, at::Tensor> losses;  // by microbatch
  parallel::ScheduleSpan span(device_);
  for (const Action& action : schedule) {
    const size_t unit = action.unit;
    switch (action.what) {
      case Do::kForward: {
        const bool begins = unit == stages_[action.stage].first;
        Slot& slot = ready(action, input);
        if (training && begins) failpoint("step.fwd");
        gather(action, forward);
        stage_.forward(unit, slot);
        break;
      }
      case Do::kLoss: {
        Slot& slot = ready(action, input);
        gather(action, forward);
        losses[action.microbatch] = stage_.loss(slot, input.scale);
        break;
      }
      case Do::kBackward: {
        Slot& slot = ready(action, input);
        if (stage_.is_head(unit + 1) || unit + 1 == slot.units.end) failpoint("step.bwd");
        if (unit == 0)
          set_phase("backward", action, stage_.group(unit).name());
        else
          gather(action, "backward");
        stage_.backward(unit, slot);
        break;
      }
      case Do::kGather:
        stage_.group(unit).start_unshard();
        break;
      case Do::kFree:
        stage_.group(unit).reshard();
        break;
      case Do::kAccumulate:
        stage_.group(unit).accumulate();
        break;
      case Do::kReduce:
        stage_.group(unit).reduce(/*last_microbatch=*/action.last);
        break;
      case Do::kFinish:
        finish(action);
        break;
      case Do::kSumReplicated:
        if (!stage_.has_replicated_gradients()) break;
        parallel::set_phase(fmt::format("step {} sum of replicated gradients", step_));
        failpoint("step.sum");
        stage_.sum_replicated_gradients();
        break;
      case Do::kSendActivation:
      case Do::kReceiveActivation:
      case Do::kSendGradient:
      case Do::kReceiveGradient:
        transfer(action, input);
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
