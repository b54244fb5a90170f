// Advises which keys to change after a job ran out of memory. Pure.
#pragma once

#include <string>

#include "trainer/config/job_config.h"

namespace hyperion::config {

// Returns "lower ..., set ..., shard over more ranks, or give the job more memory": the keys that can still
// lower a rank's memory, with their present values. `of_gpu` says that a GPU's memory ran out.
std::string memory_advice(const JobConfig& config, bool of_gpu);

// Returns the advice for activations of long sequences: "raise parallelism.context_parallel_degree (1 now),
// whose ranks share each sequence, on more ranks where all do"; "" if a rank has few tokens of each sequence.
std::string context_advice(const JobConfig& config);

}  // namespace hyperion::config
