// What a resumed run takes from its checkpoint and what from its configuration. Pure; docs/resume.md is the
// user's side of it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/args/model_args.h"
#include "trainer/checkpointing/component_choice.h"
#include "trainer/config/load.h"

namespace hyperion::checkpointing {

// The settings that shape the loss curve, as every checkpoint holds them: key and text of each, in a fixed
// order.
using CurveSettings = config::TextTable;
// The text of `key`; null when it is not there.
const std::string* find_setting(const CurveSettings& settings, std::string_view key);
// Replaces the text of a key that is there.
void set_setting(CurveSettings& settings, std::string_view key, std::string text);

// Those of them about the model, which shapes say nothing about ("model.rope_theta").
CurveSettings model_settings(const models::ModelArgs& model);

// What the configuration alone does not say.
struct JobContext {
  int64_t data_parallel_degree = 1;
  int64_t global_batch_size = 0;  // sequences of a step
  uint64_t seed = 0;              // debug.seed, or the one rank 0 drew
  uint64_t data = 0;              // DataLoader::fingerprint()
  std::string data_path{};        // where the documents are, for messages
  models::ModelArgs model;
  // Throws Error(kUsage) where this job cannot run with such a configuration. Empty: nothing is known.
  std::function<void(const config::ResolvedConfig&)> require_runnable{};
};

// What the run starts or resumes with.
struct ResumePlan {
  config::JobConfig config;        // as configured, with the saved values that win; total_steps is always set
  uint64_t seed = 0;               // for weights, data order and RNG
  int64_t schedule_start = 0;      // the step at which the curve began: lr(s) = lr * factor(s - 1 - this)
  CurveSettings settings;          // to be stored in this run's checkpoints
  std::vector<std::string> notes;  // one sentence each, to be logged
  std::vector<std::string> warnings;  // likewise
};

// `resolved` with the values that a plan follows: the origin of those that are others is the checkpoint.
config::ResolvedConfig followed_config(const config::ResolvedConfig& resolved,
                                       const config::JobConfig& followed);

// Of 1-based `step`.
double learning_rate(const ResumePlan& plan, int64_t step);

// A run from step 0. Throws Error(kUsage) when its curve ends before its steps do with a learning rate of 0.
ResumePlan fresh_plan(const config::ResolvedConfig& resolved, const JobContext& job);

struct ResumeRequest {
  LoadSource source = LoadSource::kOwn;
  checkpoint::ComponentSet components;    // those that are loaded
  std::optional<CurveSettings> stored{};  // none: a checkpoint that is not Hyperion's, or of weights alone
  int64_t step = 0;                       // of the checkpoint
  std::optional<uint64_t> data{};         // the fingerprint of its position in the data, where it has one
  std::string data_path{};                // where the documents were; "" when it does not say
  std::vector<std::string> left_out{};    // of ComponentChoice::left_out, those that it holds
  CurveSettings stored_model{};           // model_settings() of such, where it says which model it is of
};

// Throws Error(kUsage) when the settings that shape the curve differ, or, of weights that are loaded into
// another run, those of the model, and checkpoint.on_config_change does not say what to do (one message with
// all of them, and the values with which this resume would pass), when saved values that are kept make a
// configuration that cannot be run, when the data continue in another order than that of their place, and
// when remaining steps are beyond the end of a curve whose floor is 0.
ResumePlan resume_plan(const config::ResolvedConfig& resolved, const JobContext& job,
                       const ResumeRequest& request);

}  // namespace hyperion::checkpointing
