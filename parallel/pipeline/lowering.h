// From the compute actions of a pipeline schedule to all that a rank does, and whether a schedule is one.
#pragma once

#include <optional>
#include <string>

#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/simulation.h"

namespace hyperion::parallel {

inline constexpr int kMaxGatheredStages = 3;

// `schedule`, compute actions that find_problem() finds nothing wrong with, with
// - a gather of a stage's weights before they are used, among those of the next kMaxGatheredStages stages
//   that the list uses, and a free after which it uses others first; weight gradients need no weights;
// - one reduction of a stage after its last gradient; pairs that overlap become two actions;
// - sends and receives between ranks, ordered on all of them by the time at which the data exists where
//   actions cost `costs`, then by stage, op and microbatch. With one order for all ranks nothing waits for
//   itself, even where every transfer and every action waits for all that come before it in its rank's list.
PipelineSchedule lower(const PipelineSchedule& schedule, const PipelineCosts& costs);

struct PipelineProblem {
  int rank;
  std::optional<size_t> position;  // in the rank's list; none where an action is missing
  std::string text;
};

// The first reason why the lists of `schedule` cannot run as a step: an action that is there twice, missing,
// on another rank than the rest of its stage, before what it needs, or never reached because ranks wait for
// each other. With sends and receives, these are looked at as well, on one in-order stream for each rank.
std::optional<PipelineProblem> find_problem(const PipelineSchedule& schedule);

}  // namespace hyperion::parallel
