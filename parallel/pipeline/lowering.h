// Lowers the compute actions of a pipeline schedule to everything a rank does, and checks that a schedule
// can run.
#pragma once

#include <optional>
#include <string>

#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/simulation.h"

namespace hyperion::parallel {

inline constexpr int kMaxGatheredStages = 3;
// Sends of a rank in each direction that may be in flight: their tensors stay allocated.
inline constexpr int kMaxSends = 4;

// Adds to `schedule`, compute actions in which find_problem() finds no problem:
// - an unshard of a stage's weights before they are used, for the next kMaxGatheredStages stages that the
//   list uses, and a reshard once other stages are used first; wgrad needs no weights;
// - one gradient reduction of a stage after its last gradient; overlapping pairs become two actions;
// - sends and receives between ranks, in one order for all ranks: by the time at which the data exists if
//   actions cost `costs`, then by stage, op and microbatch. With one global order there is no deadlock,
//   even if every transfer and every action waits for all that come before it in its rank's list.
PipelineSchedule lower(const PipelineSchedule& schedule, const PipelineCosts& costs);

struct PipelineProblem {
  int rank;
  std::optional<size_t> position;  // in the rank's list; empty if an action is missing
  std::string text;
};

// The first reason why `schedule` cannot run as a step: an action that is duplicated, missing, on another
// rank than the rest of its stage, before its input, or never reached because ranks wait for each other. If
// `schedule` has sends and receives, they are checked too, on one in-order stream per rank.
std::optional<PipelineProblem> find_problem(const PipelineSchedule& schedule);

}  // namespace hyperion::parallel
