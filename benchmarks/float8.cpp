// FP8 linears against bf16: forward and backward of one layer at the shapes of an 8B model with 8192 tokens,
// casts of input, weight and gradient included; then the cast alone, and that of experts' groups of rows.
//   benchmark_float8 [ROUNDS]
// Prints three Markdown tables and a summary. On a CPU the shapes are small and all but tensorwise is
// emulated: it shows that everything runs, not how fast. A GPU without FP8: exit code 77.
#include <cstdio>
#include <cstdlib>
#include <functional>

#include <fmt/format.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>

#include "base/error.h"
#include "benchmarks/device_timing.h"
#include "models/float8/cast.h"
#include "models/float8/groups.h"
#include "models/float8/linear_matmuls.h"
#include "models/layers/linear.h"

using namespace hyperion;
using at::Tensor;
using float8::Gemm, float8::Recipe;

namespace {

std::vector<double> medians_of(const std::vector<std::function<void()>>& works, const BenchmarkDevice& place,
                               int rounds) {
  return interleaved_medians(works, place.device, rounds, place.device.is_cpu() ? 1 : 5);
}

struct Layer {
  const char* name;
  int64_t out, in;
  int in_block;  // how many of this shape a block has
};
constexpr Layer kLayers[] = {
    {"wq, wo", 4096, 4096, 2}, {"wk, wv", 1024, 4096, 2}, {"w1, w3", 14336, 4096, 2}, {"w2", 4096, 14336, 1}};

struct Way {
  std::string name;
  std::shared_ptr<const float8::LinearMatmuls> float8;  // null: products in bf16
  bool encoded = false;                                 // the weight was gathered in FP8
};

std::vector<Way> ways(const BenchmarkDevice& place) {
  std::vector<Way> all = {{"bf16", nullptr}};
  for (const Recipe recipe : {Recipe::kTensorwise, Recipe::kRowwise, Recipe::kRowwiseWithGwHp}) {
    const bool native = !place.device.is_cpu() || recipe == Recipe::kTensorwise;
    const auto matmuls = std::make_shared<const float8::LinearMatmuls>(
        recipe, native ? Gemm::kNative : Gemm::kEmulated, std::make_shared<float8::Counters>());
    const std::string name(text_of(recipe));
    all.push_back({native ? name : name + " (emulated)", matmuls});
    if (recipe == Recipe::kTensorwise) all.push_back({name + ", FP8 gather", matmuls, /*encoded=*/true});
  }
  return all;
}

void benchmark_layers(const BenchmarkDevice& place, int64_t tokens, int64_t divisor, int rounds) {
  const std::vector<Way> all = ways(place);
  const auto random = [&](int64_t rows, int64_t columns) {
    return at::randn({rows, columns}, place.device).to(at::kBFloat16);
  };
  std::vector<double> block(all.size());
  fmt::print("| layer | M, K, N | way | ms | TFLOP/s | to bf16 |\n|---|---|---|---:|---:|---:|\n");
  for (const Layer& layer : kLayers) {
    const int64_t out = layer.out / divisor, in = layer.in / divisor;
    const Tensor x = random(tokens, in), grad = random(tokens, out), weight = random(out, in);
    std::vector<std::function<void()>> works;
    for (const Way& way : all) {
      const ParameterPtr parameter = make_parameter("weight", {out, in}, Init::ones());
      parameter->weight = weight;
      if (way.encoded) {
        const float8::Quantized quantized = float8::quantize(weight, {});
        parameter->encoded = {quantized.values, quantized.scale, quantized.inverse};
      }
      works.emplace_back([=, linear = models::Linear(parameter, way.float8)] {
        parameter->derived.reset();
        models::Operand input(x), again(x), gradient(grad);  // backward casts the input once more
        linear.output(input);
        linear.input_gradient(gradient);
        linear.weight_gradient(gradient, again);
      });
    }
    const std::vector<double> seconds = medians_of(works, place, rounds);
    const double operations = 6.0 * static_cast<double>(tokens * out * in);
    for (size_t i = 0; i < all.size(); ++i) {
      fmt::print("| {} | {}, {}, {} | {} | {:.3f} | {:.4g} | {:.2f} |\n", layer.name, tokens, in, out,
                 all[i].name, 1e3 * seconds[i], operations / seconds[i] / 1e12, seconds[0] / seconds[i]);
      block[i] += layer.in_block * seconds[i];
    }
  }
  for (size_t i = 0; i < all.size(); ++i)
    fmt::print("| a block's seven | | {} | {:.3f} | | {:.2f} |\n", all[i].name, 1e3 * block[i],
               block[0] / block[i]);
}

void benchmark_casts(const BenchmarkDevice& place, int64_t tokens, int64_t divisor, int rounds) {
  const int64_t in = 4096 / divisor;
  const Tensor x = at::randn({tokens, in}, place.device).to(at::kBFloat16);
  const auto scale = [&](float8::Granularity granularity) {
    return float8::scales_of(float8::amax(x, granularity), float8::kE4m3, /*power_of_two=*/true).scale;
  };
  const Tensor tensor = scale(float8::Granularity::kTensor), row = scale(float8::Granularity::kRow),
               column = scale(float8::Granularity::kColumn);
  struct Case {
    const char* name;
    Tensor row_scale, column_scale;
  };
  const Case cases[] = {{"row-major, one scale", tensor, {}},
                        {"column-major, one scale", {}, tensor},
                        {"both, one scale", tensor, tensor},
                        {"both, a scale per row and column", row, column}};
  std::vector<std::function<void()>> works;
  for (const Case& one : cases) {
    works.emplace_back([&] { float8::cast(x, one.row_scale, one.column_scale, float8::kE4m3); });
    works.emplace_back([&] { float8::plain::cast(x, one.row_scale, one.column_scale, float8::kE4m3); });
  }
  const std::vector<double> seconds = medians_of(works, place, rounds);
  fmt::print("\n| cast of bf16 [{}, {}] | ms | GB/s | in ATen operations, ms |\n|---|---:|---:|---:|\n",
             tokens, in);
  for (size_t i = 0; i < std::size(cases); ++i) {
    const int copies = cases[i].row_scale.defined() + cases[i].column_scale.defined();
    const double bytes = static_cast<double>(x.numel()) * (2 + copies);
    fmt::print("| {} | {:.4f} | {:.0f} | {:.4f} |\n", cases[i].name, 1e3 * seconds[2 * i],
               bytes / seconds[2 * i] / 1e9, 1e3 * seconds[2 * i + 1]);
  }
}

void benchmark_groups(const BenchmarkDevice& place, int64_t divisor, int rounds) {
  constexpr int64_t kGroups = 16;
  const int64_t rows = 65536 / divisor, columns = 2048 / divisor, each = rows / kGroups;
  const Tensor x = at::randn({rows, columns}, place.device).to(at::kBFloat16);
  const auto ends_of = [&](int64_t first) {  // rows of the first group; the others share the rest
    const int64_t rest = (rows - first) / (kGroups - 1) / 16 * 16;
    return (at::arange(kGroups, at::kInt) * rest + first).to(place.device);
  };
  const Tensor even = ends_of(each), skewed = ends_of(rows / 2);
  const float8::Scaling scaling = {.granularity = float8::Granularity::kColumn, .power_of_two = true};
  std::vector<std::function<void()>> works;
  for (const Tensor& ends : {even, skewed}) {
    works.emplace_back([&] { float8::amax_of_groups(x, ends); });
    works.emplace_back([&] { float8::plain::amax_of_groups(x, ends); });
    works.emplace_back([&] { float8::cast_columns_of_groups(x, ends, scaling); });
  }
  const std::vector<double> seconds = medians_of(works, place, rounds);
  fmt::print(
      "\n| bf16 [{}, {}] in {} groups | maxima, ms | GB/s | in ATen operations, ms | maxima and cast, ms |\n"
      "|---|---:|---:|---:|---:|\n",
      rows, columns, kGroups);
  for (const bool is_even : {true, false}) {
    const double* const of = seconds.data() + (is_even ? 0 : 3);
    fmt::print("| {} | {:.4f} | {:.0f} | {:.4f} | {:.4f} |\n",
               is_even ? "of equal size" : "one with half of the rows", 1e3 * of[0],
               2 * static_cast<double>(x.numel()) / of[0] / 1e9, 1e3 * of[1], 1e3 * of[2]);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  if (argc > 2 || rounds < 1) {
    std::fprintf(stderr, "usage: benchmark_float8 [ROUNDS]\n");
    return 2;
  }
  const BenchmarkDevice place = choose_benchmark_device();
  if (!place.device.is_cpu() && place.compute_capability < 89) {
    fmt::print("skipped: {} (SM{}) has no FP8\n", place.name, place.compute_capability);
    return 77;
  }
  const at::NoGradGuard no_gradients;
  const int64_t tokens = place.device.is_cpu() ? 64 : 8192, divisor = place.device.is_cpu() ? 64 : 1;
  fmt::print("{}: forward and backward of one layer, casts included; medians of {} interleaved rounds\n\n",
             place.name, rounds);
  benchmark_layers(place, tokens, divisor, rounds);
  benchmark_casts(place, tokens, divisor, rounds);
  benchmark_groups(place, divisor, rounds);
  return 0;
} catch (const Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
} catch (const c10::Error& error) {
  std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  return 1;
}
