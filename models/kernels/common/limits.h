// Limits and constants of the CUDA kernels, for code that includes no CUDA header.
#pragma once

namespace hyperion::kernels {

inline constexpr int kMaxFusedExperts = 1024;  // experts of a layer
inline constexpr double kLeastSum = 1e-20;     // added to the sum that normalises the weights of experts

}  // namespace hyperion::kernels
