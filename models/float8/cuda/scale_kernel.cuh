// A thread computes the scale of one amax, and its inverse.
#pragma once

#include <cmath>

#include <cuda_bf16.h>

#include "models/float8/cuda/launch.h"

namespace hyperion::float8 {

constexpr int kScaleThreads = 256;

// scales_of() of quantize.h in its order of rounding: the division is a reciprocal and a product, in double.
// NaN stays NaN in every step. Powers of two come from their exponent, for exp2f may be off by a bit.
__device__ inline float scale_for(double amax, double largest, bool power_of_two) {
  constexpr double kEps = 1e-12;
  const double bounded = amax < kEps ? kEps : amax;
  const auto scale = static_cast<float>(1.0 / bounded * largest);
  if (!power_of_two || scale != scale) return scale;
  return scale == 0 ? 0 : ldexpf(1.0f, static_cast<int>(floorf(log2f(scale))));
}

// T: float or __nv_bfloat16.
template <typename T>
__global__ void __launch_bounds__(kScaleThreads) scale_each(const ScaleTask task) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kScaleThreads + threadIdx.x;
  if (i >= task.count) return;
  const auto amax = static_cast<double>(static_cast<float>(static_cast<const T*>(task.amax)[i]));
  const float scale = scale_for(amax, task.largest, task.power_of_two);
  task.scale[i] = scale;
  task.inverse[i] = 1.0f / scale;
}

inline int64_t blocks_of(const ScaleTask& task) {
  return (task.count + kScaleThreads - 1) / kScaleThreads;
}

}  // namespace hyperion::float8
