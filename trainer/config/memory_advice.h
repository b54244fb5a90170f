// What the configuration of a job that ran out of memory can be changed to. Pure.
#pragma once

#include <string>

#include "trainer/config/job_config.h"

namespace hyperion::config {

// "lower ..., set ..., shard over more ranks, or give the job more memory": the keys that would lower what a
// rank needs from what they are now, with their present values; none that cannot be lowered further.
// `of_gpu`: it is a GPU's memory that ran out.
std::string memory_advice(const JobConfig& config, bool of_gpu);

// Of these the one for activations of long sequences: "raise parallelism.context_parallel_degree (1 now),
// whose ranks share each sequence, on more ranks where all do"; "" where a rank has few tokens of each.
std::string context_advice(const JobConfig& config);

}  // namespace hyperion::config
