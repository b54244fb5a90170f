// Warns, before the model is built, of a job that is too large for a CPU.
#pragma once

#include <optional>
#include <string>

#include "models/args/model_args.h"
#include "trainer/config/job_config.h"

namespace hyperion::metrics {

// Returns a warning with a remedy if the lower bound of a rank's step exceeds a minute on a CPU that
// multiplies matrices at `peak` FLOP/s. `microbatches` is the number per step. Pure.
std::optional<std::string> slow_step_warning(const config::JobConfig& config, const models::ModelArgs& model,
                                             int64_t microbatches, double peak);

}  // namespace hyperion::metrics
