// The largest magnitude of a result, found by the kernel that writes it: what FP8 scales are made of, without
// a pass over the result (models/float8/quantize.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace hyperion::kernels {

// amax (fp32, one number that is not negative) becomes the largest of itself and of the magnitudes in x: NaN
// where there is one. The plain form of what fused kernels do on the way.
void raise_to_largest(const at::Tensor& amax, const at::Tensor& x);

}  // namespace hyperion::kernels
