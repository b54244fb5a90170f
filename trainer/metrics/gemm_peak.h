// The matrix-multiplication peak of this CPU, measured: what MFU is relative to when there is no GPU.
#pragma once

#include <c10/core/ScalarType.h>

namespace hyperion::metrics {

// FLOP/s of the best of some square matmuls at the present number of threads, in about `seconds` altogether
// (more where that is too short for 32 small matmuls per dtype). For bf16 it is the better of bf16 and fp32:
// a CPU without bf16 units computes bf16 matmuls in fp32, and a peak below what a model reaches would be
// none.
double measure_gemm_peak(at::ScalarType dtype, double seconds = 0.03);

}  // namespace hyperion::metrics
