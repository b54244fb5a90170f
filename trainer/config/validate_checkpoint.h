// The checks of [checkpoint] and [ema]: keys that contradict each other, each named with its remedy.
#pragma once

#include "trainer/config/validate.h"

namespace hyperion::config {

// Adds to `problems`; nothing while both features are off.
void check_checkpoint(const ResolvedConfig& resolved, const RunFacts& facts, Problems& problems);

}  // namespace hyperion::config
