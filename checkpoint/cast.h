// Conversion of numbers between the floating-point types of weights, in host memory: for exports in another
// type and for loads that allow one. Rounds to nearest, ties to even; NaN stays NaN.
#pragma once

#include <cstdint>

#include "checkpoint/types/dtype.h"

namespace hyperion::checkpoint {

// Whether cast() converts between the two (float32, float64, float16 and bfloat16, each to each).
bool can_cast(Dtype from, Dtype to);

// Converts `count` elements. The ranges do not overlap and need no alignment beyond their element's.
void cast(Dtype from, const void* in, Dtype to, void* out, uint64_t count);

}  // namespace hyperion::checkpoint
