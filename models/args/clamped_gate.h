// The constants of gpt_oss's clamped gate (models/kernels/clamped_gate), which nvcc reads too: swiglu_limit
// and swiglu_alpha of its config.json.
#pragma once

namespace hyperion::models {

inline constexpr double kGateLimit = 7, kGateSlope = 1.702;

}  // namespace hyperion::models
