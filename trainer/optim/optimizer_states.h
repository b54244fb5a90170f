// What optimizers keep of parameters, as a description: names, dtypes and bytes, before any of it exists.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "trainer/config/job_config.h"

namespace hyperion::optim {

// A state that an optimizer keeps of a parameter: a tensor of the parameter's shape, sharded as it is.
struct StateKind {
  std::string name;                       // in checkpoints, as torch.optim's: "exp_avg"
  std::optional<at::ScalarType> dtype{};  // none: the master's
};

// The states that the optimizer of these options keeps of a trainable parameter.
std::vector<StateKind> state_kinds(const config::JobConfig::Optimizer& options);
// Bytes of such states for each element of a parameter whose master takes `master_bytes` for it.
double bytes_per_element(const std::vector<StateKind>& kinds, double master_bytes);

}  // namespace hyperion::optim
