#include "trainer/metrics/gemm_peak.h"

#include <algorithm>
#include <chrono>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include "base/clock.h"

namespace hyperion::metrics {
namespace {

// Best of the matmuls of size n that fit into the time from now on, and of at least `runs`.
double best_rate(at::ScalarType dtype, int64_t n, double seconds, int runs) {
  at::NoGradGuard no_grad;
  const at::Tensor a = at::ones({n, n}, dtype), b = at::ones({n, n}, dtype);
  at::Tensor out = at::mm(a, b);  // warms up
  const auto begin = std::chrono::steady_clock::now();
  double shortest = 1e9;
  for (int run = 0; run < runs || seconds_since(begin) < seconds; ++run) {
    const auto start = std::chrono::steady_clock::now();
    at::mm_out(out, a, b);
    shortest = std::min(shortest, seconds_since(start));
  }
  return 2 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / shortest;
}

// Small matmuls find out whether large ones, which come closer to the peak, fit into the time.
double peak_of(at::ScalarType dtype, double seconds) {
  constexpr int64_t kSmall = 128, kLarge = 512;
  constexpr double kLargeFlops = 2.0 * kLarge * kLarge * kLarge;
  // If other programs use the same cores, threads wait milliseconds for each other in most runs, but not in
  // all.
  const double small = best_rate(dtype, kSmall, seconds / 4, /*runs=*/32);
  if (3 * kLargeFlops / small > seconds) return small;  // a warm-up and two runs
  return std::max(small, best_rate(dtype, kLarge, seconds / 2, /*runs=*/2));
}

}  // namespace

double measure_gemm_peak(at::ScalarType dtype, double seconds) {
  const double fp32 = peak_of(at::kFloat, seconds / 2);
  return dtype == at::kFloat ? fp32 : std::max(fp32, peak_of(dtype, seconds / 2));
}

}  // namespace hyperion::metrics
