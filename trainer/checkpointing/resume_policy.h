// What a resumed run takes from its checkpoint and what from its configuration. Pure; docs/resume.md is the
// user's side of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/checkpointing/component_choice.h"
#include "trainer/checkpointing/trajectory.h"
#include "trainer/config/load.h"

namespace hyperion::checkpointing {

// What the run starts or resumes with.
struct ResumePlan {
  config::JobConfig config;        // as configured, with the saved values that win; total_steps is always set
  uint64_t seed = 0;               // for weights, data order and RNG
  int64_t schedule_start = 0;      // the step at which the curve began: lr(s) = lr * factor(s - 1 - this)
  Trajectory trajectory;           // to be stored in this run's checkpoints
  std::vector<std::string> notes;  // one sentence each, to be logged
  std::vector<std::string> warnings;  // likewise
};

// Of 1-based `step`.
double learning_rate(const ResumePlan& plan, int64_t step);

// A run from step 0. Throws Error(kUsage) when its curve ends before its steps do with a learning rate of 0.
ResumePlan fresh_plan(const config::ResolvedConfig& resolved, const TrajectoryFacts& facts);

struct ResumeRequest {
  LoadSource source = LoadSource::kOwn;
  checkpoint::ComponentSet components;  // those that are loaded
  std::optional<Trajectory> stored{};   // none: a checkpoint that is not Hyperion's
  int64_t step = 0;                     // of the checkpoint
  std::optional<uint64_t> data{};       // the fingerprint of its position in the data, where it has one
  std::string data_place{};             // where the documents were; "" when it does not say
  std::vector<std::string> left_out{};  // of ComponentChoice::left_out, those that it holds
};

// Throws Error(kUsage) when the settings that shape the curve differ and checkpoint.on_config_change does not
// say what to do (one message with all of them, and the values with which this resume would pass), and when
// remaining steps are beyond the end of a curve whose floor is 0.
ResumePlan resume_plan(const config::ResolvedConfig& resolved, const TrajectoryFacts& facts,
                       const ResumeRequest& request);

}  // namespace hyperion::checkpointing
