// The groups of the optimizer's parameters as the start and `hyperion check` describe them.
#pragma once

#include <string>
#include <vector>

#include "models/args/model_args.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

// Returns a sentence about each group: its parameters, elements and settings. Empty if every parameter has
// the settings of [optimizer].
std::vector<std::string> describe_groups(const config::JobConfig::Optimizer& options,
                                         const models::ModelArgs& model);

}  // namespace hyperion::trainer
