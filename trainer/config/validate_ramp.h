// The checks of training.global_batch_ramp.
#pragma once

#include "trainer/config/load.h"
#include "trainer/config/validate.h"

namespace hyperion::config {

// Adds problems of the order and numbers of the stages, of a second setting of the batch, and, if the number
// of ranks is known, of a stage that they cannot make.
void check_ramp(const ResolvedConfig& resolved, const RunContext& run, Problems& problems);

}  // namespace hyperion::config
