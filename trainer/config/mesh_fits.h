// Whether degrees of parallelism fit the ranks of a job. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

#include "trainer/config/job_config.h"

namespace hyperion::config {

// Their product divides the ranks, and is their number unless data_parallel_shard_degree is -1.
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
