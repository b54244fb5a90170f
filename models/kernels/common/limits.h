// Limits and constants of the CUDA kernels, for code that includes no CUDA header.
#pragma once

namespace hyperion::kernels {

inline constexpr int kMaxFusedExperts = 1024;  // experts of a layer
inline constexpr double kLeastSum = 1e-20;     // added to the sum that normalises the weights of experts

// The clamped gate (models/kernels/clamped_gate): swiglu_limit and swiglu_alpha of gpt_oss's config.json.
inline constexpr double kGateLimit = 7, kGateSlope = 1.702;

}  // namespace hyperion::kernels
