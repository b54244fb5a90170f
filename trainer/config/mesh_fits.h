// Checks that degrees of parallelism fit the ranks of a job. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "trainer/config/job_config.h"

namespace hyperion::config {

// The product of the degrees must equal `world`; if data_parallel_shard_degree is -1, it must divide it.
inline bool mesh_fits(const JobConfig::Parallelism& p, int64_t world) {
  int64_t left = world;
  for (const int64_t degree :
       {p.pipeline_parallel_degree, p.data_parallel_replicate_degree, p.context_parallel_degree,
        p.tensor_parallel_degree, std::max<int64_t>(p.data_parallel_shard_degree, 1)}) {
    if (left % degree != 0) return false;
    left /= degree;
  }
  return p.data_parallel_shard_degree == -1 || left == 1;
}

}  // namespace hyperion::config
