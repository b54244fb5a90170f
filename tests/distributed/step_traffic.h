// The bytes that one step of TinyTraining sends, and the elements that they are of.
#pragma once

#include <cstdint>

#include "tests/support/tiny_training.h"

namespace hyperion {

struct StepTraffic {
  int64_t padded = 0, trained = 0, of_blocks = 0;              // elements of a rank's shards, times ranks
  int64_t all_gather = 0, reduce_scatter = 0, all_reduce = 0;  // bytes: two of fsdp, one of dp_replicate
};

// Runs step 0 on a mesh with two shards.
inline StepTraffic traffic_of_step(TinyTraining& training) {
  StepTraffic traffic;
  for (const auto& group : training.stage().groups())
    for (const auto& parameter : group->parameters()) {
      const int64_t elements = parameter->padded_numel() * 2;
      traffic.padded += elements;
      if (parameter->parameter().trainable) traffic.trained += elements;
      if (group->name().starts_with("layers")) traffic.of_blocks += elements;
    }
  training.ledger().reset();
  training.step(0);
  for (const auto& [key, entry] : training.ledger().entries()) {
    const auto& [group, operation] = key;
    if (group.starts_with("fsdp") && operation == "all_gather") traffic.all_gather += entry.bytes;
    if (group.starts_with("fsdp") && operation == "reduce_scatter") traffic.reduce_scatter += entry.bytes;
    if (group.starts_with("dp_replicate") && operation == "all_reduce") traffic.all_reduce += entry.bytes;
  }
  return traffic;
}

}  // namespace hyperion
