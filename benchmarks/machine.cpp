// What this machine does at best with the threads that a job has: matrix products of given shapes and copies.
//   benchmark_machine bf16|fp32 [MxKxN...]
// Prints JSON: "products", GFLOP/s of [M, K] times [K, N] and of 1024^3 by libtorch and as the program
// multiplies, and "copy", GB/s read and written by a copy that no cache holds: by processor
// time (processor_time.h). step_profile.py reads it.
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "benchmarks/processor_time.h"
#include "models/kernels/matmul/matmul.h"

using namespace hyperion;
using at::Tensor;

namespace {

struct Shape {
  int64_t m, k, n;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string dtype = argc > 1 ? argv[1] : "";
  std::vector<Shape> shapes = {{1024, 1024, 1024}};
  bool understood = dtype == "bf16" || dtype == "fp32";
  for (int i = 2; i < argc; ++i) {
    Shape& shape = shapes.emplace_back();
    char end = 0;
    understood = understood && std::sscanf(argv[i], "%ldx%ldx%ld%c", &shape.m, &shape.k, &shape.n, &end) == 3;
  }
  if (!understood) {
    std::fprintf(stderr, "usage: benchmark_machine bf16|fp32 [MxKxN...]\n");
    return 2;
  }
  const at::NoGradGuard no_gradients;
  std::vector<std::function<void()>> works;
  for (const Shape& shape : shapes) {
    const auto random = [&](int64_t rows, int64_t columns) {
      return at::randn({rows, columns}).to(dtype == "bf16" ? at::kBFloat16 : at::kFloat);
    };
    const Tensor a = random(shape.m, shape.k), b = random(shape.k, shape.n);
    works.emplace_back([a, b] { at::mm(a, b); });
    works.emplace_back([a, b] { kernels::matmul(a, b); });
  }
  constexpr int64_t kCopied = int64_t{1} << 26;  // bytes
  works.emplace_back([from = at::zeros({kCopied / 4}), to = at::zeros({kCopied / 4})] { to.copy_(from); });
  const std::vector<double> seconds = least_seconds(works, /*rounds=*/5);
  fmt::print("{{\"copy\": {:.2f}, \"products\": {{", 2e-9 * static_cast<double>(kCopied) / seconds.back());
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto& [m, k, n] = shapes[i];
    const double flops = 2e-9 * static_cast<double>(m * k * n);
    fmt::print("{}\"{}x{}x{}\": [{:.1f}, {:.1f}]", i == 0 ? "" : ", ", m, k, n, flops / seconds[2 * i],
               flops / seconds[2 * i + 1]);
  }
  fmt::print("}}}}\n");
  return 0;
}
