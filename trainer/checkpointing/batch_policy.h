// Decides whether a job that resumes on another number of ranks keeps the batch of its checkpoint. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/config/job_config.h"

namespace hyperion::checkpointing {

// The batch of a step and the data-parallel ranks that make it. Every step of a run has the same batch.
struct StepBatch {
  int64_t sequences = 0;
  int64_t ranks = 0;  // 0: not recorded
};

// Returns whether a resume keeps the saved batch without a setting: the ranks have changed, they can make
// the batch in whole microbatches, and the configuration names no batch.
bool keeps_batch(const config::JobConfig& config, const StepBatch& saved, const StepBatch& now);

// Returns the sentence about a kept batch.
std::string describe_kept_batch(const config::JobConfig& config, const StepBatch& saved, int64_t ranks);

// Returns why `ranks` cannot make the batch, and what can; "" if they can.
std::string batch_obstacle(const config::JobConfig& config, int64_t sequences, int64_t ranks);

}  // namespace hyperion::checkpointing
