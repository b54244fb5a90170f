// What a resumed run takes from its checkpoint and what from its configuration. Pure; docs/resume.md is the
// user's side of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/state.h"
#include "checkpoint/types/object.h"
#include "models/flavors/model_args.h"
#include "trainer/config/load.h"
#include "trainer/optim/lr_schedule.h"

namespace hyperion::trainer {

enum class LoadSource {
  kOwn,      // a checkpoint that this job wrote into its own folder
  kInitial,  // initial_load_path or Hugging Face weights
};

// resume_mode for this source: a job that was started from elsewhere recovers from its own checkpoints, so
// that it resumes when the same command starts it again.
ResumeMode resume_mode(const JobConfig& config, LoadSource source);

// The components to read. `weights_only`: the checkpoint holds the model alone (a seed, a last save).
checkpoint::ComponentSet components_to_load(const JobConfig& config, LoadSource source, bool weights_only);

// Those that are not read because checkpoint.components or exclude_from_loading leave them out.
std::vector<std::string> components_left_out(const JobConfig& config, LoadSource source, bool weights_only);

// Everything that shapes the loss curve, as key and text in a fixed order. Stored in every checkpoint.
using Trajectory = TextTable;
// The text of `key`; null when the trajectory does not have it.
const std::string* find_setting(const Trajectory& trajectory, std::string_view key);

struct TrajectoryFacts {  // what the configuration alone does not say
  int64_t data_parallel_degree = 1;
  int64_t global_batch_size = 0;  // sequences of a step
  uint64_t seed = 0;              // debug.seed, or the one rank 0 drew
  uint64_t data = 0;              // DataLoader::fingerprint()
  std::string data_place{};       // where the documents are, for messages
  models::ModelArgs model;
};

// What the run starts or resumes with.
struct ResumePlan {
  JobConfig config;                // as configured, with the saved values that win; total_steps is always set
  uint64_t seed = 0;               // for weights, data order and RNG
  int64_t schedule_start = 0;      // the step at which the curve began: lr(s) = lr * factor(s - 1 - this)
  Trajectory trajectory;           // to be stored in this run's checkpoints
  std::vector<std::string> notes;  // one sentence each, to be logged
  std::vector<std::string> warnings;  // likewise
};

LrSchedule schedule_of(const JobConfig& config);
// Of 1-based `step`.
double learning_rate(const ResumePlan& plan, int64_t step);

// A run from step 0. Throws Error(kUsage) when its curve ends before its steps do with a learning rate of 0.
ResumePlan fresh_plan(const ResolvedConfig& resolved, const TrajectoryFacts& facts);

struct ResumeRequest {
  LoadSource source = LoadSource::kOwn;
  checkpoint::ComponentSet components;  // those that are loaded
  std::optional<Trajectory> stored;     // none: a checkpoint that is not Hyperion's
  int64_t step = 0;                     // of the checkpoint
  std::optional<uint64_t> data{};       // the fingerprint of its position in the data, where it has one
  std::string data_place{};             // where the documents were; "" when it does not say
  std::vector<std::string> left_out{};  // components_left_out() that it holds
};

// How to leave a component of a checkpoint out, by the options that apply to this source: "start once with
// --checkpoint.exclude_from_loading=dataloader (and without it again ...)".
std::string leave_out_remedy(const JobConfig& config, LoadSource source, std::string_view component);

// Throws Error(kUsage) when the settings that shape the curve differ and checkpoint.on_config_change does not
// say what to do (one message with all of them, and the values with which this resume would pass), and when
// remaining steps are beyond the end of a curve whose floor is 0.
ResumePlan resume_plan(const ResolvedConfig& resolved, const TrajectoryFacts& facts,
                       const ResumeRequest& request);

// A table as a checkpoint stores it: a dict of texts. `where` is for the message of Error(kBadData).
checkpoint::Object to_object(const TextTable& table);
TextTable text_table(const checkpoint::Object& object, const std::string& where);

}  // namespace hyperion::trainer
