// Limits and constants of the CUDA kernels, for code that includes no CUDA header.
#pragma once

namespace hyperion::kernels {

inline constexpr int kMaxFusedExperts = 1024;  // of a layer
inline constexpr double kLeastSum = 1e-20;     // is added to the sum that weights of experts are divided by

}  // namespace hyperion::kernels
