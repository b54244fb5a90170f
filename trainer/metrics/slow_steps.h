// What a step costs a CPU, for jobs that no CPU can make: said before the model is made.
#pragma once

#include <optional>
#include <string>

#include "models/args/model_args.h"
#include "trainer/config/job_config.h"

namespace hyperion::metrics {

// A warning where a step of one rank takes a CPU that multiplies matrices with `peak` FLOP/s longer than a
// minute at the least, with the way out; `microbatches`: of a step. Pure.
std::optional<std::string> slow_step_warning(const config::JobConfig& config, const models::ModelArgs& model,
                                             int64_t microbatches, double peak);

}  // namespace hyperion::metrics
