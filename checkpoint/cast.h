// Converts numbers between the floating-point types of weights, in host memory: for exports in another type
// and for loads that allow a cast. Rounds to nearest, ties to even; NaN stays NaN.
#pragma once

#include <cstdint>

#include "checkpoint/types/dtype.h"

namespace hyperion::checkpoint {

// Returns whether cast() converts between the two types (float32, float64, float16 and bfloat16, each to
// each).
bool can_cast(Dtype from, Dtype to);

// Converts `count` elements. The ranges must not overlap and must be aligned to their elements.
void cast(Dtype from, const void* in, Dtype to, void* out, uint64_t count);

}  // namespace hyperion::checkpoint
