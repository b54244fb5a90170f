#include "trainer/schedule.h"

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>

#include "base/failpoint.h"
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
      schedule.push_back({with_gradients, i, unit});
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
  return schedule;
}

std::vector<at::Tensor> ScheduleRunner::train_step(int64_t step, size_t microbatches, const Fetch& microbatch,
                                                   const at::Tensor& scale, models::LayerMetrics* metrics) {
  step_ = step;
  stage_.drop_gradients();
  return run(training_schedule(stage_.end(), microbatches, reshard_after_forward_, reduce_once_),
             microbatches, microbatch, scale, metrics);
}

at::Tensor ScheduleRunner::loss_sum(const models::Microbatch& batch) {
  const at::NoGradGuard no_grad;
  return run(
             evaluation_schedule(stage_.end()), 1, [&](size_t) { return batch; }, /*scale=*/{},
             /*metrics=*/nullptr)
      .front();
}

void ScheduleRunner::set_phase(const char* what, size_t unit) const {
  parallel::set_phase(fmt::format("step {} {} {}", step_, what, stage_.group(unit).name()));
}

// Waits for the weights of the action's unit and starts the all-gather of those that it prefetches.
void ScheduleRunner::gather(const Action& action, const char* phase) const {
  set_phase(phase, action.unit);
  stage_.group(action.unit).finish_unshard();
  if (action.prefetch) stage_.group(*action.prefetch).start_unshard();
}

// Without a `scale` there is no backward.
std::vector<at::Tensor> ScheduleRunner::run(const Schedule& schedule, size_t microbatches,
                                            const Fetch& microbatch, const at::Tensor& scale,
                                            models::LayerMetrics* metrics) {
  const bool training = scale.defined();
  const char* const forward = training ? "forward" : "validation";
  std::vector<std::optional<Slot>> slots(microbatches);  // of microbatches that have begun and not finished
  std::vector<at::Tensor> losses(microbatches);
  for (const Action& action : schedule) {
    const size_t unit = action.unit;
    std::optional<Slot>& slot = slots[action.microbatch];
    switch (action.what) {
      case Do::kForward:
        if (!slot) {
          slot = stage_.slot(microbatch(action.microbatch), training, metrics);
          if (training) failpoint("step.fwd");
        }
        gather(action, forward);
        stage_.forward(unit, *slot);
        break;
      case Do::kLoss:
        gather(action, forward);
        losses[action.microbatch] = stage_.loss(*slot, scale);
        break;
      case Do::kBackward:
        if (unit + 2 == stage_.end()) failpoint("step.bwd");
        if (unit == 0)
          set_phase("backward", unit);
        else
          gather(action, "backward");
        stage_.backward(unit, *slot);
        break;
      case Do::kFree:
        stage_.group(unit).reshard();
        break;
      case Do::kAccumulate:
        stage_.group(unit).accumulate();
        break;
      case Do::kReduce:
        stage_.group(unit).reduce(/*last_microbatch=*/action.microbatch + 1 == microbatches);
        break;
      case Do::kFinish:
        stage_.finish_reduction();
        slot.reset();
        break;
      case Do::kSumReplicated:
        if (!stage_.has_replicated_gradients()) break;
        parallel::set_phase(fmt::format("step {} sum of replicated gradients", step_));
        failpoint("step.sum");
        stage_.sum_replicated_gradients();
        break;
    }
  }
  return losses;
}

}  // namespace hyperion::trainer
