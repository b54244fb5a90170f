// Describes the states that optimizers keep per parameter: names, dtypes and bytes, before they are
// allocated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "trainer/config/job_config.h"

namespace hyperion::optim {

// An optimizer state of a parameter: a tensor with the parameter's shape and sharding.
struct StateKind {
  std::string name;                       // name in checkpoints, torch.optim's: "exp_avg"
  std::optional<at::ScalarType> dtype{};  // none: the master's dtype
};

// Returns the dtype of the configured states; none: the master's.
std::optional<at::ScalarType> state_dtype(const config::JobConfig::Optimizer& options);
// Returns the states that the configured optimizer keeps of a trainable parameter with that name and number
// of dimensions.
std::vector<StateKind> state_kinds(const config::JobConfig::Optimizer& options, const std::string& fqn,
                                   size_t dimensions);
// Returns the key of the random numbers that round a parameter's states in bf16.
uint64_t rounding_key(const std::string& fqn, uint64_t seed);
// Returns the bytes of such states per element of a parameter. `master_bytes` is the size of a master's
// element.
double bytes_per_element(const std::vector<StateKind>& kinds, double master_bytes);

}  // namespace hyperion::optim
