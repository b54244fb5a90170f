// The parts of benchmark_gpu (benchmarks/gpu.cpp) share the sizes of a rehearsal, rows of the output and
// medians.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>

#include "benchmarks/device_timing.h"

namespace hyperion {

using Works = std::vector<std::function<void()>>;

// One BF16 rounding is up to 2^-9 of a value; sums of a block's length leave about this of the norm.
inline constexpr double kBf16Error = 0.02;

inline bool small = false;        // --small
inline bool found_wrong = false;  // a row said what is wrong

inline int64_t size(int64_t whole, int64_t rehearsed) {
  return small ? rehearsed : whole;
}

inline at::Tensor random(at::IntArrayRef shape, at::ScalarType dtype = at::kBFloat16) {
  return at::randn(shape, at::TensorOptions(at::kCUDA)).to(dtype);
}

// `fields`: further members of the object, each with a comma before it. `wrong`: what is wrong, or "".
inline void print_row(std::string_view name, const std::string& fields, const std::string& wrong = "") {
  fmt::print("{{\"name\": \"{}\"{}{}}}\n", name, fields,
             wrong.empty() ? "" : fmt::format(", \"wrong\": \"{}\"", wrong));
  std::fflush(stdout);
  found_wrong = found_wrong || !wrong.empty();
}

inline std::vector<double> medians(const Works& works, int times) {
  constexpr int kRounds = 9;
  return interleaved_medians(works, at::kCUDA, small ? 1 : kRounds, small ? 1 : times);
}

inline double seconds_of(const std::function<void()>& work, int times = 5) {
  return medians({work}, times)[0];
}

inline double relative_error(const at::Tensor& found, const at::Tensor& reference) {
  const at::Tensor wanted = reference.to(at::kFloat);
  return ((found.to(at::kFloat) - wanted).norm() / wanted.norm()).item<double>();
}

// NaN never passes.
inline std::string error_over(double error, double limit) {
  return error <= limit ? "" : fmt::format("relative error {:.3g}, at most {:.3g} expected", error, limit);
}

// The part "experts" (benchmarks/gpu_experts.cpp).
void experts(const BenchmarkDevice& place);

}  // namespace hyperion
