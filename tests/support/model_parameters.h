// The parameters of a test as states of checkpoints take them, where this rank holds all of them.
#pragma once

#include <memory>
#include <vector>

#include "trainer/checkpointing/job_state.h"

namespace hyperion::checkpointing {

inline std::vector<ModelParameter> all_held(const std::vector<parallel::ShardedParameterPtr>& parameters) {
  std::vector<ModelParameter> all;
  for (const parallel::ShardedParameterPtr& held : parameters)
    all.push_back({.parameter = std::shared_ptr<const Parameter>(held, &held->parameter()),
                   .placement = held->placement(),
                   .dtype = held->master().scalar_type(),
                   .sharded = held,
                   .index = all.size()});
  return all;
}

}  // namespace hyperion::checkpointing
