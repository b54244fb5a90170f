// The global batch of each step: one number, or the stages of training.global_batch_ramp. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/config/job_config.h"

namespace hyperion::config {

struct BatchStage {
  int64_t first_step = 1;
  int64_t sequences = 0;  // of each of its steps
  bool operator==(const BatchStage&) const = default;
};

// TrainedSoFar is the progress of a run, from which a ramp in tokens continues.
struct TrainedSoFar {
  int64_t steps = 0, tokens = 0;
};

// A step has the batch of the last stage whose number of steps or tokens has been trained before it. So the
// batch depends on the configuration and on what was trained, and on nothing that a resume could lose.
class BatchSchedule {
 public:
  BatchSchedule(const JobConfig::Training& training, int64_t data_parallel_degree, TrainedSoFar trained = {});

  // Returns the stages with steps behind TrainedSoFar::steps; one without a ramp.
  const std::vector<BatchStage>& stages() const { return stages_; }
  // Returns the sequences of a 1-based step behind TrainedSoFar::steps.
  int64_t sequences_of(int64_t step) const;
  int64_t tokens_of(int64_t step) const { return sequences_of(step) * seq_len_; }
  // Returns the sequences of the steps behind TrainedSoFar::steps, up to `step`.
  int64_t sequences_up_to(int64_t step) const;
  // Returns the step of the n-th of these sequences, from 1.
  int64_t step_of_sequence(int64_t n) const;
  // Returns the microbatches of a step on each data-parallel rank.
  int64_t microbatches_of(int64_t step) const { return sequences_of(step) / microbatch_; }

  // Returns "64 sequences from step 1, 128 from step 1,001".
  std::string describe() const;

 private:
  int64_t seq_len_, microbatch_, trained_;
  std::vector<BatchStage> stages_;
};

// Describes the batch of a job for `hyperion check`: sequences and tokens of a step, or of a ramp.
std::string describe_batch(const JobConfig::Training& training, int64_t data_parallel_degree);

// Returns the largest number of which every stage's batch is a multiple; -1: one microbatch on each rank.
int64_t common_batch_of(const JobConfig::Training& training);

}  // namespace hyperion::config
