// The memory of a rank's stages while the rank runs its list of a pipeline schedule. It depends on numbers
// alone.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <span>

#include "parallel/pipeline/schedule.h"

namespace hyperion::parallel {

// The gradients of a step in one part of a stage. kPartial: some microbatches have added theirs. kComplete:
// all have, and the gradients are reduced.
enum class GradientProgress : uint8_t { kNone, kPartial, kComplete };

// The weights and gradients of one stage at one moment.
struct StageWeights {
  bool gathered = false;
  // The last stage's head has its gradients after dgrad, all other units after wgrad.
  GradientProgress gradients = GradientProgress::kNone, head_gradients = GradientProgress::kNone;
  auto operator<=>(const StageWeights&) const = default;
};

struct StageMemory {
  StageWeights weights{};
  int in_flight = 0;  // microbatches: from their forward to the end of backward or wgrad
  int deferred = 0;   // microbatches between dgrad and the end of wgrad
};

// Calls `visit` with the memory of the rank's stages, in ascending order of stages, while each compute action
// of the rank's list runs and once after the last one. `schedule` is lowered, so that it says which stages
// are gathered.
void for_each_moment(const PipelineSchedule& schedule, int rank,
                     const std::function<void(std::span<const StageMemory>)>& visit);

}  // namespace hyperion::parallel
