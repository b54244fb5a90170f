// The checks of check_config() that are about experts: who divides them, and whether a converter can take
// them. Pure.
#pragma once

#include "trainer/config/load.h"
#include "trainer/config/validate.h"

namespace hyperion::config {

// Adds what it finds to `problems`; run.model is set.
void check_experts(const ResolvedConfig& resolved, const RunContext& run, Problems& problems);

}  // namespace hyperion::config
