// A Job is a training job before any weight exists: its configuration, ranks, data and seed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "data/loader.h"
#include "models/args/model_args.h"
#include "trainer/build/pipeline_setup.h"
#include "trainer/checkpointing/job_record.h"
#include "trainer/checkpointing/resume_policy.h"
#include "trainer/config/load.h"
#include "trainer/data/job_data.h"
#include "trainer/runtime/runtime.h"

namespace hyperion::trainer {

struct Job {
  config::ResolvedConfig configured;  // as the user gave it, fitted to the ranks (fit_to_ranks())
  models::ModelArgs model;
  DataSetup data;
  std::optional<PipelinePlan> pipeline;
  Runtime runtime;
  uint64_t seed = 0;  // debug.seed, or the seed that rank 0 drew
  std::unique_ptr<data::DataLoader> loader;
  checkpointing::JobRecord record;  // stored in the job's checkpoints
};

// Checks the complete configuration before it touches a device, joins the other ranks, opens the data, and
// compares the values that must be equal on all ranks. Collective. Throws Error for everything that ends a
// job at this point.
Job start_job(const config::ResolvedConfig& resolved);

// Rebuilds the job's pipeline schedule and loader for the configuration and the seed of its plan, which may
// keep saved values. Collective. Throws Error(kUsage) if that configuration does not fit into memory.
void follow_plan(Job& job, const checkpointing::ResumePlan& plan);

}  // namespace hyperion::trainer
