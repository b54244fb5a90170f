// What a training job is, before any weight exists: its configuration, its ranks, its data and its seed.
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
  config::ResolvedConfig configured;  // as the user gave it
  models::ModelArgs model;
  DataSetup data;
  std::optional<PipelinePlan> pipeline;
  Runtime runtime;
  uint64_t seed = 0;  // debug.seed, or one that rank 0 drew
  std::unique_ptr<data::DataLoader> loader;
  checkpointing::JobRecord record;  // what its checkpoints say about it
};

// Checks the configuration as a whole before it touches a device, joins the other ranks, opens the data, and
// compares with the other ranks what must be the same on all. Collective. Throws Error for everything that
// ends a job at this point.
Job start_job(const config::ResolvedConfig& resolved);

// Prepares a started job for the configuration and the seed of its plan, which may keep saved values: the
// order of its pipeline and its loader. Collective. Throws Error(kUsage) where that configuration does not
// fit into memory.
void follow_plan(Job& job, const checkpointing::ResumePlan& plan);

}  // namespace hyperion::trainer
