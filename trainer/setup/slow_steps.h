// What a step costs a CPU, for jobs that no CPU can make: said before the model is made.
#pragma once

#include <optional>
#include <string>

#include "models/flavors/model_args.h"
#include "trainer/runtime/runtime.h"

namespace hyperion::trainer {

// A warning where a step of one rank takes a CPU that multiplies matrices with `peak` FLOP/s longer than a
// minute at the least, with the way out; `microbatches`: of a step. Pure.
std::optional<std::string> slow_step_warning(const JobConfig& config, const models::ModelArgs& model,
                                             int64_t microbatches, double peak);

// Logs it on the ranks of a CPU that print, by the peak of this CPU, which is measured where it may matter.
void warn_of_slow_steps(const JobConfig& config, const models::ModelArgs& model, const Runtime& runtime);

}  // namespace hyperion::trainer
