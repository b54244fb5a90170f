// Checks for check_config() how experts are sharded and whether a converter supports them. Pure.
#pragma once

#include "trainer/config/load.h"
#include "trainer/config/validate.h"

namespace hyperion::config {

// Adds problems of experts to `problems`. run.model must be set.
void check_experts(const ResolvedConfig& resolved, const RunContext& run, Problems& problems);

}  // namespace hyperion::config
