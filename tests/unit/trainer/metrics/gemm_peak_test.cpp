#include "trainer/metrics/gemm_peak.h"

#include <catch2/catch.hpp>

using namespace hyperion;

TEST_CASE("The measured matmul peak of a CPU is a plausible number of FLOPs a second") {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const double peak = measure_gemm_peak(dtype);
    CAPTURE(peak);
    CHECK(peak > 1e7);  // shared machines may be very busy
    CHECK(peak < 1e15);
  }
}
