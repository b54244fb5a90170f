// Decides which settings a resumed run takes from its checkpoint and which from its configuration. Pure.
// docs/resume.md describes it for users.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/source_state.h"
#include "models/args/model_args.h"
#include "trainer/checkpointing/component_choice.h"
#include "trainer/checkpointing/curve_settings.h"
#include "trainer/config/load.h"

namespace hyperion::checkpointing {

// Facts of the job that the configuration does not hold.
struct JobContext {
  int64_t data_parallel_degree = 1;
  int64_t global_batch_size = 0;             // sequences per step
  uint64_t seed = 0;                         // debug.seed, or the seed that rank 0 drew
  uint64_t data = 0;                         // DataLoader::fingerprint()
  std::vector<data::SourceState> sources{};  // of DataLoader::initial_state()
  std::string data_path{};                   // path of the documents, for messages
  models::ModelArgs model;
  // Throws Error(kUsage) if this job cannot run with that configuration. If empty, nothing is checked.
  std::function<void(const config::ResolvedConfig&)> require_runnable{};
};

// The configuration, seed and curve that the run starts or resumes with.
struct ResumePlan {
  config::JobConfig config;        // as configured, with the saved values that win; total_steps is always set
  uint64_t seed = 0;               // for weights, data order and RNG
  int64_t schedule_start = 0;      // step at which the curve began: lr(s) = lr * factor(s - 1 - this)
  CurveSettings settings;          // stored in this run's checkpoints
  std::vector<std::string> notes;  // one sentence each, to be logged
  std::vector<std::string> warnings;  // likewise
};

// Returns `resolved` with the values that a plan follows. The origin of each changed value is the checkpoint.
config::ResolvedConfig followed_config(const config::ResolvedConfig& resolved,
                                       const config::JobConfig& followed);

// Returns the learning rate of 1-based `step`.
double learning_rate(const ResumePlan& plan, int64_t step);

// Plans a run from step 0. Throws Error(kUsage) if the curve ends, at a learning rate of 0, before the last
// step.
ResumePlan fresh_plan(const config::ResolvedConfig& resolved, const JobContext& job);

struct ResumeRequest {
  LoadSource source = LoadSource::kOwn;
  checkpoint::ComponentSet components;    // the components that are loaded
  std::optional<CurveSettings> stored{};  // none: not Hyperion's checkpoint, or weights alone
  int64_t step = 0;                       // the checkpoint's
  std::optional<uint64_t> data{};         // fingerprint of its position in the data, if it has one
  std::string data_path{};                // path of the documents; "" if unknown
  std::vector<std::string> left_out{};    // the parts of ComponentChoice::left_out that it holds
  CurveSettings stored_model{};  // model_settings() of a checkpoint without `stored`, if it records its model
  std::vector<data::SourceState> sources{};  // of its position in the data
  int64_t data_parallel_degree = 0;          // of the job that saved it; 0: not recorded
};

// Plans a resumed run. Throws Error(kUsage) in four cases. (1) Curve settings differ, or model settings
// differ for weights loaded into another run, and checkpoint.on_config_change does not say what to do; one
// message lists all of them and the values with which this resume would pass. (2) The kept saved values make
// a configuration that cannot run. (3) The data would continue in an order other than that of the saved
// position. (4) Remaining steps lie beyond the end of a curve whose floor is 0.
ResumePlan resume_plan(const config::ResolvedConfig& resolved, const JobContext& job,
                       const ResumeRequest& request);

}  // namespace hyperion::checkpointing
