// Limits and constants of the CUDA kernels, for code that includes no CUDA header.
#pragma once

#include "models/args/clamped_gate.h"

namespace hyperion::kernels {

inline constexpr int kMaxFusedExperts = 1024;  // experts of a layer
inline constexpr int kMaxRowGroups = 2048;  // groups of rows in order: the experts for each slice of tokens
inline constexpr double kLeastSum = 1e-20;  // added to the sum that normalises the weights of experts

using models::kGateLimit, models::kGateSlope;

}  // namespace hyperion::kernels
