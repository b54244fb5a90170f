#include "parallel/pipeline/stage_memory.h"

#include <vector>

namespace hyperion::parallel {
namespace {

using enum PipelineOp;

// Gradients that a stage's microbatches have still to add.
struct MissingGradients {
  int of_units, of_head;
};

void add_gradients(GradientProgress& progress, int& missing) {
  progress = --missing == 0 ? GradientProgress::kComplete : GradientProgress::kPartial;
}

}  // namespace

void for_each_moment(const PipelineSchedule& schedule, int rank,
                     const std::function<void(std::span<const StageMemory>)>& visit) {
  std::vector<size_t> index_of_stage;  // among the rank's stages
  std::vector<StageMemory> stages;
  for (const int owner : schedule.rank_of_stage) {
    index_of_stage.push_back(stages.size());
    if (owner == rank) stages.emplace_back();
  }
  std::vector<MissingGradients> missing(stages.size(), {schedule.microbatches, schedule.microbatches});
  for (const PipelineAction& action : schedule.ranks[static_cast<size_t>(rank)]) {
    const size_t index = index_of_stage[static_cast<size_t>(action.stage)];
    StageMemory& stage = stages[index];
    if (action.op == kUnshard) stage.weights.gathered = true;
    if (action.op == kReshard) stage.weights.gathered = false;
    if (!is_compute(action.op)) continue;
    if (action.op == kForward) ++stage.in_flight;
    visit(stages);
    if (action.op == kForward) continue;
    const bool dgrad = action.op != kWeightGradient, wgrad = action.op != kInputGradient;
    if (dgrad && action.stage + 1 == schedule.stages())
      add_gradients(stage.weights.head_gradients, missing[index].of_head);
    if (wgrad) {
      add_gradients(stage.weights.gradients, missing[index].of_units);
      --stage.in_flight;
    }
    if (action.op == kInputGradient) ++stage.deferred;
    if (action.op == kWeightGradient) --stage.deferred;
  }
  visit(stages);
}

}  // namespace hyperion::parallel
