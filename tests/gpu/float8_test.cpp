// FP8 on its hardware: the cast's kernel against its plain form, _scaled_mm against the emulation, and a
// training against the one that the CPU emulates.
#include <atomic>
#include <memory>
#include <string_view>

#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/record_function.h>

#include "models/float8/blocks.h"
#include "models/float8/cast.h"
#include "models/float8/grouped_matmuls.h"
#include "models/float8/groups.h"
#include "models/float8/linear_matmuls.h"
#include "models/float8/scaled_matmul.h"
#include "tests/gpu/gpu.h"
#include "tests/support/float8_bits.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace hyperion {
namespace {

using namespace float8;

using at::Tensor;
using parallel::Environment;

// Runs `function`, which returns a vector, on the first GPU in a process of its own; empty after saying why
// it cannot.
template <typename Function>
auto on_float8_gpu(const Function& function, int first_capability = 89)
    -> std::invoke_result_t<Function, const Environment&> {
  if (gpus() == 0) return {};
  if (gpu_capability() < first_capability) {
    std::printf("skipped: this GPU is SM%d and has no %s (SM%d or newer has)\n", gpu_capability(),
                first_capability < 100 ? "FP8" : "MXFP8", first_capability);
    return {};
  }
  return run_one_rank(
      [&](const Environment& environment) {
        use_gpu(0);
        return function(environment);
      },
      kGpuTimeout);
}

// Checks that each of the function's counts of differences is 0.
template <typename Function>
void check_none_differ(const Function& function, int first_capability = 89) {
  for (const auto count : on_float8_gpu(function, first_capability)) CHECK(count == 0);
}

Tensor on_gpu(const Tensor& x) {
  return x.to(at::kCUDA);
}

Tensor scales(at::IntArrayRef shape) {
  return at::rand(shape).mul_(500);
}

// How many of the kernel's results for x differ from the plain form's: run on the GPU, and on the CPU.
int differing_casts(const Tensor& x, const Tensor& row_scale, const Tensor& column_scale,
                    at::ScalarType dtype) {
  const auto moved = [](const Tensor& t) { return t.defined() ? on_gpu(t) : t; };
  const Tensor there = moved(x), row = moved(row_scale), column = moved(column_scale);
  const Copies kernel = cast(there, row, column, dtype), plain = plain::cast(there, row, column, dtype),
               cpu = plain::cast(x, row_scale, column_scale, dtype);
  int differing = 0;
  const auto compare = [&](const Tensor& found, const Tensor& wanted) {
    if (found.defined() != wanted.defined())
      ++differing;
    else if (found.defined())
      differing += same_bits(found.cpu(), wanted.cpu()) ? 0 : 1;
  };
  compare(kernel.rows, plain.rows);
  compare(kernel.columns, plain.columns);
  compare(kernel.rows, cpu.rows);
  compare(kernel.columns, cpu.columns);
  if (kernel.columns.defined() && !kernel.columns.t().is_contiguous()) ++differing;
  return differing;
}

double sqnr(const Tensor& reference, const Tensor& other) {
  const Tensor r = reference.to(at::kDouble), o = other.to(at::kDouble);
  return 10 * std::log10(r.square().sum().item<double>() /
                         std::max(1e-300, (r - o).square().sum().item<double>()));
}

}  // namespace

TEST_CASE("the FP8 cast on a GPU has the bits of its plain form") {
  check_none_differ([](const Environment&) {
    at::manual_seed(11);
    std::vector<int> results;
    for (at::ScalarType from : {at::kFloat, at::kBFloat16})
      for (at::ScalarType dtype : {kE4m3, kE5m2})
        for (int64_t m : {1, 15, 16, 17, 63, 64, 65, 200, 1000})
          for (int64_t n : {16, 48, 64, 80, 256, 1040}) {
            const Tensor x = troublesome(m, n).to(from);
            const Tensor rows = scales({m, 1}), columns = scales({1, n}), one = scales({});
            int sum = differing_casts(x, rows, columns, dtype) + differing_casts(x, one, one, dtype);
            sum += differing_casts(x, rows, {}, dtype) + differing_casts(x, {}, columns, dtype);
            sum += differing_casts(plain::cast(x, one, {}, dtype).rows, {}, one, dtype);
            results.push_back(sum);
          }
    return results;
  });
}

TEST_CASE(
    "the FP8 cast on a GPU rounds every bf16 number as libtorch does and takes any address and any rows") {
  check_none_differ([](const Environment&) -> std::vector<int64_t> {
    const Tensor every = at::arange(65536, at::kInt).to(at::kShort).view(at::kBFloat16).view({512, 128});
    int64_t sum = 0;
    for (at::ScalarType dtype : {kE4m3, kE5m2})
      for (double scale : {1.0, 448e12, 0.0, 1.7e-5}) {
        const Tensor one = at::full({}, scale);
        sum +=
            differing_casts(every, one, one, dtype) + differing_casts(every.to(at::kFloat), one, one, dtype);
      }
    // A view that starts at no multiple of 16 bytes, and no rows at all.
    const Tensor flat = at::randn({32 * 48 + 1}, at::kCUDA);
    const Tensor shifted = flat.narrow(0, 1, 32 * 48).view({32, 48}), one = at::ones({}, at::kCUDA);
    const Copies ours = cast(shifted, one, one, kE4m3), wanted = plain::cast(shifted, one, one, kE4m3);
    sum += same_bits(ours.rows, wanted.rows) && same_bits(ours.columns, wanted.columns) ? 0 : 1;
    // Rows with gaps between them.
    const Tensor packed = at::randn({65, 3 * 48}, at::kCUDA).to(at::kBFloat16);
    for (int64_t first : {0, 48, 96, 4}) {
      const Tensor part = packed.narrow(1, first, 48);
      const Copies of_part = cast(part, one, one, kE5m2), dense = plain::cast(part, one, one, kE5m2);
      sum += same_bits(of_part.rows, dense.rows) && same_bits(of_part.columns, dense.columns) ? 0 : 1;
    }
    const Copies empty = cast(at::empty({0, 48}, at::kCUDA), one, one, kE4m3);
    sum += empty.rows.numel() + empty.columns.numel();
    return {sum};
  });
}

TEST_CASE("the FP8 cast on a GPU makes the scales of amaxes on the way") {
  check_none_differ([](const Environment&) {
    at::manual_seed(15);
    std::vector<int> results;
    for (at::ScalarType from : {at::kFloat, at::kBFloat16})
      for (const auto& [m, n] : {std::pair(1, 16), std::pair(65, 80), std::pair(200, 1040)})
        for (auto part : {Granularity::kTensor, Granularity::kRow})
          for (bool power_of_two : {false, true}) {
            const Tensor x = troublesome(m, n).to(from);
            const Scaling rows = {.granularity = part, .power_of_two = power_of_two};
            Scaling columns = rows;
            if (part == Granularity::kRow) columns.granularity = Granularity::kColumn;
            const Operands cpu = quantize_operands(x, rows, columns),
                           gpu = quantize_operands(on_gpu(x), rows, columns);
            for (const auto& [found, wanted] :
                 {std::pair(gpu.rows, cpu.rows), std::pair(gpu.columns, cpu.columns)})
              results.push_back(same_bits(found.values.cpu(), wanted.values) &&
                                        same_bits(found.scale.cpu(), wanted.scale) &&
                                        same_bits(found.inverse.cpu(), wanted.inverse)
                                    ? 0
                                    : 1);
            Tensor into = at::empty_like(gpu.rows.values);
            cast_into(into, on_gpu(x), on_gpu(at::full({}, 2.5)));
            results.push_back(same_bits(into.cpu(), cast(x, at::full({}, 2.5), {}, kE4m3).rows) ? 0 : 1);
          }
    return results;
  });
}

TEST_CASE("products of experts in FP8 on a GPU are near their emulation") {
  const GroupedRecipe recipe = GENERATE(GroupedRecipe::kRowwise, GroupedRecipe::kMx);
  if (gpus() == 0) return;
  if (const char* why = why_not_grouped(recipe == GroupedRecipe::kMx, gpu_capability())) {
    std::printf("skipped: %s\n", why);
    return;
  }
  const auto decibel = on_float8_gpu([=](const Environment&) {
    at::manual_seed(17);
    const std::vector<int64_t> counts = {37, 0, 64, 200};
    const kernels::PaddedGroups padded = kernels::pad_groups(at::tensor(counts), 301, unit_of(recipe));
    const auto random = [](at::IntArrayRef shape) { return at::randn(shape).to(at::kBFloat16); };
    const Tensor x = random({padded.rows, 64}), grad = random({padded.rows, 96}), stack = random({4, 96, 64});
    for (const Tensor& rows : {x, grad}) rows.index_fill_(0, padded.padding, 0);
    const int64_t used = padded.ends[-1].item<int64_t>();
    const auto run = [&](Gemm gemm, at::Device device) {
      const GroupedMatmuls matmuls(recipe, gemm, std::make_shared<Counters>());
      const ParameterPtr weight = make_parameter("w", {4, 96, 64}, Init::ones(), 1);
      weight->weight = stack.to(device);
      const Tensor ends = padded.ends.to(device);
      models::Operand of_x(x.to(device)), of_grad(grad.to(device));
      return std::vector<Tensor>{
          matmuls.output(of_x, *weight, ends, nullptr).narrow(0, 0, used).cpu(),
          matmuls.input_gradient(of_grad, *weight, ends, nullptr).narrow(0, 0, used).cpu(),
          matmuls.weight_gradient(of_grad, of_x, ends).cpu()};
    };
    const std::vector<Tensor> native = run(Gemm::kNative, at::kCUDA),
                              emulated = run(Gemm::kEmulated, at::kCPU);
    std::vector<double> results;
    for (size_t i = 0; i < native.size(); ++i) results.push_back(sqnr(emulated[i], native[i]));
    return results;
  });
  for (const double each : decibel) CHECK(each > 35);  // the hardware adds up with fewer bits
}

TEST_CASE("the cast to MXFP8 on a GPU has the bits of its plain form") {
  check_none_differ([](const Environment&) {
    at::manual_seed(16);
    std::vector<int> results;
    for (at::ScalarType from : {at::kFloat, at::kBFloat16})
      for (const auto& [m, n] : {std::pair(1, 32), std::pair(33, 96), std::pair(200, 1056)})
        for (bool up : {false, true}) {
          const Tensor x = troublesome(m, n).to(from);
          const Scaling rows = {.granularity = Granularity::kRowBlock, .rounds_up = up},
                        columns = {.granularity = Granularity::kColumnBlock, .rounds_up = up};
          const Operands cpu = cast_blocks(x, rows, columns), gpu = cast_blocks(on_gpu(x), rows, columns);
          for (const auto& [found, wanted] :
               {std::pair(gpu.rows, cpu.rows), std::pair(gpu.columns, cpu.columns)})
            results.push_back(same_bits(found.values.cpu(), wanted.values) &&
                                      found.scale.cpu().view(at::kByte).equal(wanted.scale.view(at::kByte))
                                  ? 0
                                  : 1);
        }
    return results;
  });
}

TEST_CASE("MXFP8 products of a GPU are near their emulation") {
  const auto found = on_float8_gpu(
      [](const Environment&) {
        at::manual_seed(17);
        std::vector<double> results;
        for (MxRecipe recipe : {MxRecipe::kCublas, MxRecipe::kCublasRceil})
          for (const auto& [m, k, n] :
               std::vector<std::array<int64_t, 3>>{{32, 32, 32}, {40, 64, 96}, {200, 1056, 288}}) {
            const auto random = [](int64_t rows, int64_t columns) {
              return at::randn({rows, columns}, at::kCUDA).to(at::kBFloat16);
            };
            const ParameterPtr parameter = make_parameter("w.weight", {n, k}, Init::ones());
            parameter->weight = random(n, k);
            const Tensor x = random(m, k), grad = random(m, n);
            const auto run = [&](Gemm gemm) {
              const LinearMatmuls matmuls(recipe, gemm, std::make_shared<Counters>());
              parameter->derived.reset();
              models::Operand dy(grad), input(x);
              const Tensor back = matmuls.input_gradient(dy, *parameter, nullptr);
              return std::vector<Tensor>{matmuls.output(input, *parameter, nullptr), back,
                                         matmuls.weight_gradient(dy, input, dy.dtype)};
            };
            const auto native = run(Gemm::kNative), emulated = run(Gemm::kEmulated);
            for (size_t i = 0; i < native.size(); ++i) results.push_back(sqnr(emulated[i], native[i]) - 45);
          }
        return results;
      },
      /*first_capability=*/100);
  for (double above_limit : found) CHECK(above_limit > 0);
}

TEST_CASE("FP8 scales of a GPU have the bits of the CPU's") {
  check_none_differ([](const Environment&) {
    at::manual_seed(13);
    std::vector<int> results;
    for (at::ScalarType from : {at::kFloat, at::kBFloat16})
      for (at::ScalarType dtype : {kE4m3, kE5m2})
        for (auto part : {Granularity::kTensor, Granularity::kRow, Granularity::kColumn})
          for (bool power_of_two : {false, true}) {
            const Tensor x = troublesome(200, 80).mul(at::rand({200, 1})).to(from);
            const Scales cpu = scales_of(amax(x, part), dtype, power_of_two),
                         gpu = scales_of(amax(on_gpu(x), part), dtype, power_of_two);
            results.push_back(same_bits(gpu.scale.cpu(), cpu.scale) ? 0 : 1);
            results.push_back(same_bits(gpu.inverse.cpu(), cpu.inverse) ? 0 : 1);
          }
    return results;
  });
}

TEST_CASE("maxima of groups of rows on a GPU have the bits of the plain form") {
  check_none_differ([](const Environment&) {
    at::manual_seed(18);
    std::vector<int> results;
    for (at::ScalarType from : {at::kFloat, at::kBFloat16})
      for (const int64_t n : {16, 80, 1040}) {
        const Tensor ends = at::tensor({0, 16, 16, 48, 512, 528, 528, 1500}, at::kInt);
        for (const Tensor& x : {troublesome(1600, n).to(from), at::randn({1501, n}).to(from)})
          results.push_back(
              same_bits(amax_of_groups(on_gpu(x), on_gpu(ends)).cpu(), float8::plain::amax_of_groups(x, ends))
                  ? 0
                  : 1);
      }
    return results;
  });
}

TEST_CASE("a stack is cast on a GPU to the bits of the CPU's") {
  check_none_differ([](const Environment&) {
    at::manual_seed(19);
    std::vector<int> results;
    for (at::ScalarType from : {at::kFloat, at::kBFloat16})
      for (const auto& [n, k] : {std::pair(16, 16), std::pair(48, 80), std::pair(144, 1040)}) {
        const Tensor stack = troublesome(5 * n, k).to(from).view({5, n, k});
        const Operands cpu = cast_stack(stack, {}), gpu = cast_stack(on_gpu(stack), {});
        for (const auto& [found, wanted] :
             {std::pair(gpu.rows, cpu.rows), std::pair(gpu.columns, cpu.columns)})
          results.push_back(same_bits(found.values.cpu(), wanted.values) &&
                                    same_bits(found.scale.cpu(), wanted.scale) &&
                                    same_bits(found.inverse.cpu(), wanted.inverse)
                                ? 0
                                : 1);
      }
    return results;
  });
}

TEST_CASE("FP8 products are rescaled on a GPU to the bits of the CPU's") {
  check_none_differ([](const Environment&) {
    at::manual_seed(14);
    std::vector<int> results;
    for (const auto& [m, n] : {std::pair(1, 16), std::pair(33, 48), std::pair(1000, 1040)})
      for (const Tensor& row : {at::rand({m, 1}), at::full({}, 0.3)})
        for (const Tensor& column : {at::rand({1, n}), at::full({}, 1e-3)}) {
          Tensor cpu = at::randn({m, n}).mul(1000).to(at::kBFloat16), gpu = on_gpu(cpu);
          rescale_in_place(gpu, on_gpu(row), on_gpu(column));
          results.push_back(rescale_in_place(cpu, row, column).equal(gpu.cpu()) ? 0 : 1);
        }
    return results;
  });
}

// What libtorch and cuBLAS refuse of rows that 16 does not divide is for gpu_check to record
// (benchmarks/gpu.cpp): a refusal is no failure there. libtorch's own checks run on a simulated GPU too, and
// refuse none of them.
// Products whose sums are fp32 differ from the emulation by bf16's rounding (50 dB); fast accumulation, in
// the forward product alone, keeps fewer bits between its partial sums.
TEST_CASE("FP8 products of a GPU are near their emulation for every recipe and layout") {
  const auto found = on_float8_gpu([](const Environment&) {
    at::manual_seed(12);
    std::vector<double> results;
    for (Recipe recipe : {Recipe::kTensorwise, Recipe::kRowwise, Recipe::kRowwiseWithGwHp})
      for (const auto& [m, k, n] : std::vector<std::array<int64_t, 3>>{
               {16, 16, 16}, {1, 32, 48}, {17, 64, 48}, {33, 48, 80}, {200, 1040, 272}, {512, 4096, 1024}}) {
        const auto random = [](int64_t rows, int64_t columns) {
          return at::randn({rows, columns}, at::kCUDA).to(at::kBFloat16);
        };
        const Tensor x = random(m, k), grad = random(m, n), weight = random(n, k);
        const auto run = [&](Gemm gemm, bool encoded) {
          const LinearMatmuls matmuls(recipe, gemm, std::make_shared<Counters>());
          const ParameterPtr parameter = make_parameter("w.weight", {n, k}, Init::ones());
          parameter->weight = weight;
          if (encoded) {
            const Quantized master = quantize(weight, {});
            parameter->encoded = {master.values, master.scale, master.inverse};
          }
          // Gradients come in other layouts than row-major as well.
          models::Operand dy(grad.t().contiguous().t()), input(x), again(x);
          const Tensor back = matmuls.input_gradient(dy, *parameter, nullptr);
          return std::vector<Tensor>{matmuls.output(input, *parameter, nullptr), back,
                                     matmuls.weight_gradient(dy, again, dy.dtype)};
        };
        for (bool encoded : {false, true}) {
          if (encoded && recipe != Recipe::kTensorwise) continue;
          std::vector<Tensor> native;
          try {
            native = run(Gemm::kNative, encoded);
          } catch (const c10::Error&) {
            if (m % 16 == 0 || simulated()) throw;
            continue;
          }
          const auto emulated = run(Gemm::kEmulated, encoded);
          for (size_t i = 0; i < native.size(); ++i)
            results.push_back(sqnr(emulated[i], native[i]) - (i == 0 ? 35 : 45));
        }
      }
    return results;
  });
  for (double above_limit : found) CHECK(above_limit > 0);
}

namespace {

// What the callback below has seen; casts of backward are on threads of libtorch's.
struct SeenCasts {
  std::atomic<int64_t> casts = 0, wrong = 0;
} g_seen;

// Returns whether an amax is that of x: of all of it, or of each row or column.
bool is_amax_of(const Tensor& amax, const Tensor& x) {
  const Tensor magnitudes = x.abs().to(at::kFloat);
  const Tensor wanted = amax.numel() == 1   ? magnitudes.amax()
                        : amax.size(1) == 1 ? magnitudes.amax(1)
                                            : magnitudes.amax(0);
  return amax.to(at::kFloat).view(-1).equal(wanted.view(-1));
}

std::unique_ptr<at::ObserverContext> see_cast(const at::RecordFunction& function) {
  if (std::string_view(function.name()) != "hyperion::float8_cast_by_amax") return nullptr;
  ++g_seen.casts;
  const Tensor x = function.inputs()[0].toTensor();
  for (const size_t place : {1, 2}) {
    const c10::IValue& given = function.inputs()[place];
    if (!given.isNone() && !is_amax_of(given.toTensor(), x)) ++g_seen.wrong;
  }
  return nullptr;
}

}  // namespace

TEST_CASE("every FP8 cast of a training is scaled by the largest magnitude of what it casts") {
  using models::ActivationCheckpoint;
  // The trainings of a recipe share a process: each start of CUDA takes seconds.
  for (const auto& [recipe, gather] : {std::pair("tensorwise", true), std::pair("tensorwise", false),
                                       std::pair("rowwise", false), std::pair("rowwise_with_gw_hp", false)}) {
    std::vector<TinyJob> jobs;
    for (const char* model : {"llama3", "qwen3"})
      for (const auto checkpoint : {ActivationCheckpoint::kNone, ActivationCheckpoint::kFull,
                                    ActivationCheckpoint::kSelectiveOp, ActivationCheckpoint::kElementwise})
        jobs.push_back({.model = model,
                        .compute = at::kBFloat16,
                        .checkpoint = checkpoint,
                        .accumulation = 2,
                        .device = at::Device(at::kCUDA, 0),
                        .float8 = recipe,
                        .float8_gather = gather,
                        .float8_emulate = false});
    const std::vector<std::array<int64_t, 2>> seen = on_float8_gpu([&jobs](const Environment& environment) {
      std::vector<std::array<int64_t, 2>> results;
      for (const TinyJob& job : jobs) {
        g_seen.casts = g_seen.wrong = 0;
        TinyTraining training(job, environment);
        const auto handle = at::addGlobalCallback(at::RecordFunctionCallback(see_cast).needsInputs(true));
        training.first_gradients();
        at::removeCallback(handle);
        results.push_back({g_seen.casts, g_seen.wrong});
      }
      return results;
    });
    for (size_t i = 0; i < seen.size(); ++i) {
      CAPTURE(recipe, gather, jobs[i].model, static_cast<int>(jobs[i].checkpoint));
      CHECK(seen[i][0] > 0);
      CHECK(seen[i][1] == 0);
    }
  }
}

TEST_CASE("FP8 trains on a GPU as the CPU emulates it") {
  for (const auto& [recipe, gather] : {std::pair("tensorwise", false), std::pair("tensorwise", true),
                                       std::pair("rowwise", false), std::pair("rowwise_with_gw_hp", false)}) {
    const TinyJob emulated{.compute = at::kBFloat16, .float8 = recipe, .float8_gather = gather};
    TinyJob native = emulated;
    native.device = at::Device(at::kCUDA, 0);
    native.float8_emulate = false;
    const auto train = [](const TinyJob& job) {
      return [&job](const Environment& environment) { return train_tiny(job, environment, 20); };
    };
    const std::vector<TinyStep> gpu = on_float8_gpu(train(native));
    if (gpu.empty()) return;
    const std::vector<TinyStep> cpu = run_one_rank(train(emulated));
    INFO(recipe << (gather ? " with FP8 gather" : ""));
    CHECK(gpu[0].loss == Approx(cpu[0].loss).epsilon(2e-3));
    for (size_t step = 0; step < 20; ++step) CHECK(std::abs(gpu[step].loss - cpu[step].loss) < 2e-2);
    CHECK(gpu.back().loss < gpu.front().loss - 0.2);  // and it learns
  }
}

}  // namespace hyperion
