// Measures the matrix-multiplication peak of this CPU, the base of MFU without a GPU.
#pragma once

#include <c10/core/ScalarType.h>

namespace hyperion::metrics {

// Returns the FLOP/s of the best of some square matmuls at the present number of threads. Takes about
// `seconds`, or longer if 32 small matmuls per dtype need more. For bf16 it returns the better of bf16 and
// fp32: a CPU without bf16 units computes bf16 matmuls in fp32, and a model must not exceed the peak.
double measure_gemm_peak(at::ScalarType dtype, double seconds = 0.03);

}  // namespace hyperion::metrics
