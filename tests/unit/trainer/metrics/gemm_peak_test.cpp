#include "trainer/metrics/gemm_peak.h"

#include <algorithm>
#include <chrono>

#include <catch2/catch.hpp>

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

namespace hyperion::trainer {
namespace {

// FLOP/s of the best of many matmuls of size n, measured here.
double rate(int64_t n) {
  const at::Tensor a = at::ones({n, n}), b = at::ones({n, n});
  at::Tensor out = at::mm(a, b);
  double shortest = 1e9;
  for (int run = 0; run < 50; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    at::mm_out(out, a, b);
    shortest =
        std::min(shortest, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return 2 * static_cast<double>(n * n * n) / shortest;
}

}  // namespace

// The limits are far apart because other programs may hold the cores at any moment.
TEST_CASE("The matmul peak of a CPU is what matmuls reach, and no less for bf16 than for fp32") {
  const double reached = std::max(rate(128), rate(512));
  const double fp32 = measure_gemm_peak(at::kFloat), bf16 = measure_gemm_peak(at::kBFloat16);
  CAPTURE(reached, fp32, bf16);
  // Between what a host with much other work leaves and what no CPU reaches: a wrong unit or count is further
  // off.
  for (const double peak : {fp32, bf16}) {
    CHECK(peak > 1e6);
    CHECK(peak < 1e15);
  }
  CHECK(fp32 < reached * 1000);
}

}  // namespace hyperion::trainer
