// The CUDA kernels of FP8 without a GPU: their source on CPU threads against the plain
// form, and their place in libtorch's dispatcher. tests/gpu/float8_test.cpp runs the compiled ones.
#include <tuple>

#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "base/device/device_library.h"
#include "models/float8/blocks.h"
#include "models/float8/cast.h"
#include "models/float8/groups.h"
#include "models/float8/scaled_matmul.h"
#include "tests/support/float8_bits.h"

// The kernel comes after what stands in for CUDA.
// clang-format off
#include "tests/unit/models/cuda_on_cpu.h"
#include "models/float8/cuda/amax_kernel.cuh"
#include "models/float8/cuda/cast_kernel.cuh"
#include "models/float8/cuda/mx_kernel.cuh"
#include "models/float8/cuda/rescale_kernel.cuh"
#include "models/float8/cuda/scale_kernel.cuh"
// clang-format on

namespace hyperion::models {

using namespace float8;
using at::Tensor;

namespace {

constexpr int64_t kGuard = 64;  // bytes after each output that must stay as they are

struct Output {
  Tensor bytes;
  explicit Output(int64_t size) : bytes(at::full({size + kGuard}, 0xa5, at::kByte)) {}
  uint8_t* data() { return bytes.mutable_data_ptr<uint8_t>(); }
  Tensor as(at::ScalarType dtype, int64_t m, int64_t n) const {
    return bytes.narrow(0, 0, m * n).view({m, n}).view(dtype);
  }
  bool guarded() const { return bytes.narrow(0, bytes.numel() - kGuard, kGuard).eq(0xa5).all().item<bool>(); }
};

template <typename T, __nv_fp8_interpretation_t kFormat>
void run_kernel(const CastTask& task) {
  run_blocks(static_cast<unsigned>(tiles_of(task)), kThreads, cast_tile<T, kFormat>, task);
}

void run_kernel(const CastTask& task, const Tensor& x, at::ScalarType dtype) {
  if (x.scalar_type() == dtype) return run_kernel<uint8_t, __NV_E4M3>(task);
  if (x.scalar_type() == at::kFloat)
    return dtype == kE4m3 ? run_kernel<float, __NV_E4M3>(task) : run_kernel<float, __NV_E5M2>(task);
  return dtype == kE4m3 ? run_kernel<__nv_bfloat16, __NV_E4M3>(task)
                        : run_kernel<__nv_bfloat16, __NV_E5M2>(task);
}

// Runs the kernel's source and compares with the plain form.
void check_kernel(const Tensor& x, const Tensor& row_scale, const Tensor& column_scale,
                  at::ScalarType dtype) {
  const int64_t m = x.size(0), n = x.size(1), padded = (m + 15) / 16 * 16;
  Output rows(m * n), columns(n * padded);
  CastTask task{.x = x.const_data_ptr(), .stride = x.stride(0), .m = m, .n = n};
  if (row_scale.defined()) {
    task.row_scales = {.each = row_scale.numel() > 1, .scale = row_scale.const_data_ptr<float>()};
    task.rows = rows.data();
  }
  if (column_scale.defined()) {
    task.column_scales = {.each = column_scale.numel() > 1, .scale = column_scale.const_data_ptr<float>()};
    task.columns = columns.data();
    task.padded_m = padded;
  }
  run_kernel(task, x, dtype);
  const Copies expected = plain::cast(x, row_scale, column_scale, dtype);
  INFO(m << " x " << n << " of " << x.scalar_type() << " to " << dtype);
  if (row_scale.defined()) CHECK(same_bits(rows.as(dtype, m, n), expected.rows));
  if (column_scale.defined()) CHECK(same_bits(columns.as(dtype, n, padded).t(), expected.columns));
  CHECK(rows.guarded());
  CHECK(columns.guarded());
}

// The same with scales that are made of amaxes.
void check_kernel_by_amax(const Tensor& x, const Tensor& row_amax, const Tensor& column_amax,
                          at::ScalarType dtype, bool power_of_two) {
  const int64_t m = x.size(0), n = x.size(1), padded = (m + 15) / 16 * 16;
  Output rows(m * n), columns(n * padded);
  CastTask task{.x = x.const_data_ptr(),
                .stride = x.stride(0),
                .m = m,
                .n = n,
                .padded_m = padded,
                .largest = largest_of(dtype),
                .power_of_two = power_of_two};
  std::vector<Tensor> made;  // one number more than there are scales
  const auto of = [&](const Tensor& amax) {
    Tensor& scale = made.emplace_back(at::full({amax.numel() + 1}, -1.0));
    float* const scales = scale.mutable_data_ptr<float>();
    Tensor& inverse = made.emplace_back(at::full({amax.numel() + 1}, -1.0));
    return CastScales{.each = amax.numel() > 1,
                      .amax = amax.const_data_ptr(),
                      .amax_is_bf16 = amax.scalar_type() == at::kBFloat16,
                      .made_scale = scales,
                      .made_inverse = inverse.mutable_data_ptr<float>()};
  };
  if (row_amax.defined()) {
    task.row_scales = of(row_amax);
    task.rows = rows.data();
  }
  if (column_amax.defined()) {
    task.column_scales = of(column_amax);
    task.columns = columns.data();
  }
  run_kernel(task, x, dtype);
  const Operands expected = plain::cast_by_amax(x, row_amax, column_amax, dtype, power_of_two);
  INFO(m << " x " << n << " of " << x.scalar_type() << " to " << dtype);
  size_t next = 0;
  for (const auto& [amax, wanted] :
       {std::pair(row_amax, expected.rows), std::pair(column_amax, expected.columns)}) {
    if (!amax.defined()) continue;
    for (const Tensor& numbers : {wanted.scale, wanted.inverse}) {
      const Tensor& found = made.at(next++);
      CHECK(same_bits(found.narrow(0, 0, amax.numel()).view(numbers.sizes()), numbers));
      CHECK(found[-1].item<float>() == -1);
    }
  }
  if (row_amax.defined()) CHECK(same_bits(rows.as(dtype, m, n), expected.rows.values));
  if (column_amax.defined()) CHECK(same_bits(columns.as(dtype, n, padded).t(), expected.columns.values));
  CHECK(rows.guarded());
  CHECK(columns.guarded());
}

}  // namespace

TEST_CASE("the source of the CUDA cast makes the scales of amaxes on the way") {
  at::manual_seed(10);
  for (const at::ScalarType from : {at::kFloat, at::kBFloat16})
    for (const at::ScalarType dtype : {kE4m3, kE5m2})
      for (const bool power_of_two : {false, true})
        for (const auto& [m, n] : {std::pair(1, 16), std::pair(63, 80), std::pair(130, 144)}) {
          const Tensor x = troublesome(m, n).to(from);
          const Tensor rows = amax(x, Granularity::kRow), columns = amax(x, Granularity::kColumn);
          const Tensor one = at::full({}, 3.25).to(from);  // less than many numbers: they saturate
          check_kernel_by_amax(x, rows, columns, dtype, power_of_two);
          check_kernel_by_amax(x, one, one, dtype, power_of_two);
          check_kernel_by_amax(x, rows, one, dtype, power_of_two);
          check_kernel_by_amax(x, rows.to(at::kFloat), {}, dtype, power_of_two);
          check_kernel_by_amax(x, {}, columns, dtype, power_of_two);
        }
}

TEST_CASE("the source of the CUDA cast gives the bits of the plain form") {
  at::manual_seed(7);
  for (const at::ScalarType from : {at::kFloat, at::kBFloat16})
    for (const at::ScalarType dtype : {kE4m3, kE5m2})
      for (const auto& [m, n] : {std::pair(1, 16), std::pair(63, 80), std::pair(130, 144)}) {
        const Tensor x = troublesome(m, n).to(from);
        const Tensor row_scale = at::rand({m, 1}).mul(500), column_scale = at::rand({1, n}).mul(500);
        const Tensor one = at::full({}, 2.5);
        check_kernel(x, row_scale, column_scale, dtype);
        check_kernel(x, one, one, dtype);
        check_kernel(x, row_scale, {}, dtype);
        check_kernel(x, {}, column_scale, dtype);
        check_kernel(plain::cast(x, one, {}, dtype).rows, {}, one, dtype);
      }
}

TEST_CASE("the source of the CUDA cast takes scales of columns by group of rows") {
  at::manual_seed(14);
  for (const at::ScalarType from : {at::kFloat, at::kBFloat16})
    for (const auto& [m, n] : {std::pair(16, 16), std::pair(144, 80)}) {
      const Tensor x = troublesome(m, n).to(from), scale = at::rand({3, n}).mul(500),
                   group = at::randint(3, {m}, at::kLong);
      Output columns(n * m);
      CastTask task{.x = x.const_data_ptr(), .stride = n, .m = m, .n = n};
      task.column_scales = {.each = true, .scale = scale.const_data_ptr<float>()};
      task.groups = group.const_data_ptr<int64_t>();
      task.columns = columns.data();
      task.padded_m = m;
      run_kernel(task, x, kE4m3);
      const Tensor expected = saturating_cast(x, scale.index_select(0, group), kE4m3);
      CHECK(same_bits(columns.as(kE4m3, n, m).t(), expected));
      CHECK(columns.guarded());
    }
}

TEST_CASE("the source of the CUDA cast of a stack gives the bits of its plain form") {
  at::manual_seed(19);
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("hyperion::float8_cast_stack", "")
                      .typed<std::tuple<Tensor, Tensor, Tensor, Tensor>(const Tensor&, const Tensor&,
                                                                        const Tensor&, bool)>();
  for (const at::ScalarType from : {at::kFloat, at::kBFloat16})
    for (const auto& [matrices, n, k] :
         {std::tuple(1, 16, 16), std::tuple(5, 48, 80), std::tuple(2, 144, 64), std::tuple(3, 64, 128)}) {
      const int64_t m = int64_t{matrices} * n;
      const Tensor lines = troublesome(m, k).to(from), stack = lines.view({matrices, n, k});
      const Tensor row_amax = amax(lines, Granularity::kRow), column_scale = at::rand({matrices, k}).mul(500);
      Output rows(m * k), columns(m * k);
      Tensor scale = at::full({m}, -1.0), inverse = at::full({m}, -1.0);
      CastTask task{.x = lines.const_data_ptr(),
                    .stride = k,
                    .m = m,
                    .n = k,
                    .padded_m = m,
                    .largest = largest_of(kE4m3),
                    .power_of_two = true};
      task.row_scales = {.each = m > 1,
                         .amax = row_amax.const_data_ptr(),
                         .amax_is_bf16 = from == at::kBFloat16,
                         .made_scale = scale.mutable_data_ptr<float>(),
                         .made_inverse = inverse.mutable_data_ptr<float>()};
      task.column_scales = {.each = true, .scale = column_scale.const_data_ptr<float>()};
      task.stack_rows = n;
      task.rows = rows.data();
      task.columns = columns.data();
      run_kernel(task, lines, kE4m3);
      INFO(stack.sizes() << " of " << from);
      const auto [plain_rows, plain_columns, plain_scale, plain_inverse] =
          op.call(stack, row_amax, column_scale, true);
      CHECK(same_bits(rows.as(kE4m3, m, k), plain_rows.view({m, k})));
      CHECK(same_bits(columns.as(kE4m3, m, k), plain_columns.view({m, k})));
      CHECK(same_bits(scale, plain_scale.flatten()));
      CHECK(same_bits(inverse, plain_inverse.flatten()));
      CHECK((rows.guarded() && columns.guarded()));
    }
}

TEST_CASE("a stack is cast with the bits of its matrices and of their transposes") {
  at::manual_seed(20);
  const Scaling row = {.granularity = Granularity::kRow, .power_of_two = true};
  for (const at::ScalarType from : {at::kFloat, at::kBFloat16}) {
    const Tensor stack = troublesome(3 * 48, 80).to(from).view({3, 48, 80});
    const Operands both = cast_stack(stack, {});
    for (int64_t i = 0; i < 3; ++i)
      for (const auto& [found, matrix] :
           {std::pair(both.rows, stack[i]), std::pair(both.columns, stack[i].t().contiguous())}) {
        const Quantized wanted = quantize(matrix, row);
        CHECK(same_bits(found.values[i], wanted.values));
        CHECK(same_bits(found.scale[i], wanted.scale.squeeze(1)));
        CHECK(same_bits(found.inverse[i], wanted.inverse.squeeze(1)));
      }
  }
}

TEST_CASE("the source of the CUDA maxima of groups gives the bits of the plain form") {
  at::manual_seed(15);
  const auto check = [](const Tensor& x, const std::vector<int>& given) {
    const int64_t n = x.size(1);
    const Tensor ends = at::tensor(given, at::kInt);
    Output amax(static_cast<int64_t>(given.size()) * n * 4);
    amax.bytes.narrow(0, 0, amax.bytes.numel() - kGuard).zero_();
    const GroupAmaxTask task = {.x = x.const_data_ptr(),
                                .stride = x.stride(0),
                                .m = x.size(0),
                                .n = n,
                                .ends = ends.const_data_ptr<int32_t>(),
                                .groups = static_cast<int>(given.size()),
                                .amax = reinterpret_cast<unsigned*>(amax.data())};
    const auto blocks = static_cast<unsigned>(blocks_of(task));
    if (x.scalar_type() == at::kFloat)
      run_blocks(blocks, kThreads, amax_of_groups<float>, task);
    else
      run_blocks(blocks, kThreads, amax_of_groups<__nv_bfloat16>, task);
    INFO(x.sizes() << " of " << x.scalar_type());
    const Tensor found = amax.bytes.narrow(0, 0, ends.size(0) * n * 4).view(at::kFloat).view({-1, n});
    CHECK(same_bits(found, plain::amax_of_groups(x, ends)));
    CHECK(amax.guarded());
  };
  for (const at::ScalarType from : {at::kFloat, at::kBFloat16}) {
    check(troublesome(16, 16).to(from), {16});
    // Rows are no multiple of a tile, groups begin inside tiles or span them, some are empty, and NaN,
    // infinities and large numbers lie behind the last group.
    check(troublesome(560, 80).to(from), {0, 16, 16, 48, 512, 528, 528});
    check(at::randn({700, 144}).to(from), {300, 301, 301, 640});
    check(at::randn({320, 192}).to(from).narrow(1, 64, 64), {16, 272, 320});  // rows with gaps between them
    check(at::zeros({32, 16}, from), {0, 0, 16});
    check(at::zeros({0, 16}, from), {0, 0});
  }
  const Tensor one = at::zeros({512, 16});
  one[300][3] = std::nanf("");
  one[301][4] = -std::numeric_limits<float>::infinity();
  check(one, {256, 512});
  CHECK(plain::amax_of_groups(one, at::tensor({256, 512}, at::kInt))[1][3].isnan().item<bool>());
}

TEST_CASE("the source of the CUDA cast reads rows with gaps between them as rows without") {
  at::manual_seed(12);
  for (const at::ScalarType from : {at::kFloat, at::kBFloat16})
    for (const auto& [m, n] : {std::pair(1, 16), std::pair(63, 80), std::pair(130, 144)}) {
      const Tensor packed = troublesome(m, 3 * n).to(from);  // gradients of three products, side by side
      const Tensor one = at::full({}, 2.5), column_scale = at::rand({1, n}).mul(500);
      for (int64_t part = 0; part < 3; ++part) {
        const Tensor x = packed.narrow(1, part * n, n);
        check_kernel(x, one, one, kE5m2);
        check_kernel(x, {}, column_scale, kE4m3);
        const Tensor largest = amax(x.nan_to_num(1, 2, -2), Granularity::kTensor);
        check_kernel_by_amax(x, largest, largest, kE5m2, false);
      }
      const Tensor encoded = plain::cast(packed, one, {}, kE4m3).rows;
      check_kernel(encoded.narrow(1, n, n), {}, one, kE4m3);
    }
}

TEST_CASE("the source of the CUDA cast rounds every bf16 number and many of fp32 as libtorch does") {
  const Tensor every = at::arange(65536, at::kInt).to(at::kShort).view(at::kBFloat16).view({512, 128});
  const Tensor many = at::randint(INT32_MIN, INT32_MAX, {1024, 64}, at::kLong).to(at::kInt).view(at::kFloat);
  for (const at::ScalarType dtype : {kE4m3, kE5m2})
    for (const double scale : {1.0, 448e12, 0.0, 1.7e-5}) {
      const Tensor one = at::full({}, scale);
      check_kernel(every, one, {}, dtype);
      check_kernel(many, one, {}, dtype);
      // halfway between FP8 numbers, and a little to either side
      const Tensor numbers = at::arange(256, at::kInt).to(at::kByte).view(dtype).to(at::kFloat);
      const Tensor halfway = (numbers + numbers.roll(1)) / 2;
      check_kernel(at::cat({halfway, halfway * (1 + 1e-6), halfway * (1 - 1e-6)}).view({12, 64}), one, {},
                   dtype);
    }
}

TEST_CASE("the source of the CUDA cast to MXFP8 gives the bits of the plain form") {
  at::manual_seed(11);
  for (const at::ScalarType from : {at::kFloat, at::kBFloat16})
    for (const bool up : {false, true})
      for (const auto& [m, n] :
           {std::pair(1, 32), std::pair(33, 96), std::pair(64, 64), std::pair(130, 160)}) {
        // Numbers of any size: as many blocks have outliers as not.
        const Tensor powers = at::exp2(at::randint(-140, 120, {m, n / 32}).to(at::kFloat));
        const Tensor mixed = at::randn({m, n}) * powers.repeat_interleave(32, 1);
        for (const Tensor& x : {troublesome(m, n).to(from), mixed.to(from), at::zeros({m, n}, from)}) {
          const int64_t padded = (m + 31) / 32 * 32;
          Output rows(m * n), columns(n * padded), row_scales(m * n / 32), column_scales(n * padded / 32);
          for (const bool both : {true, false}) {
            const MxTask task = {.x = x.const_data_ptr(),
                                 .m = m,
                                 .n = n,
                                 .rounds_up = up,
                                 .rows = both ? rows.data() : nullptr,
                                 .row_scales = both ? row_scales.data() : nullptr,
                                 .columns = columns.data(),
                                 .column_scales = column_scales.data(),
                                 .padded_m = padded};
            const auto blocks = static_cast<unsigned>(tiles_of(task));
            if (from == at::kFloat)
              run_blocks(blocks, kMxThreads, cast_mx_tile<float>, task);
            else
              run_blocks(blocks, kMxThreads, cast_mx_tile<__nv_bfloat16>, task);
          }
          INFO(m << " x " << n << " of " << from << (up ? ", up" : ", down"));
          const Operands wanted =
              plain::cast_blocks(x, Scaling{.granularity = Granularity::kRowBlock, .rounds_up = up},
                                 Scaling{.granularity = Granularity::kColumnBlock, .rounds_up = up});
          CHECK(same_bits(rows.as(kE4m3, m, n), wanted.rows.values));
          CHECK(same_bits(columns.as(kE4m3, n, padded).t(), wanted.columns.values));
          CHECK(row_scales.as(at::kByte, m, n / 32).equal(wanted.rows.scale.view(at::kByte)));
          CHECK(column_scales.as(at::kByte, n, padded / 32).equal(wanted.columns.scale.t().view(at::kByte)));
          for (const Output& output : {rows, columns, row_scales, column_scales}) CHECK(output.guarded());
        }
      }
}

TEST_CASE("the source of the CUDA scale gives the bits of the plain form") {
  at::manual_seed(8);
  const auto run = [](const Tensor& amax, double largest, bool power_of_two) {
    Tensor scale = at::full({amax.numel() + 1}, -1.0), inverse = at::full_like(scale, -1.0);
    const ScaleTask task = {.amax = amax.const_data_ptr(),
                            .count = amax.numel(),
                            .scale = scale.mutable_data_ptr<float>(),
                            .inverse = inverse.mutable_data_ptr<float>(),
                            .largest = largest,
                            .power_of_two = power_of_two};
    const auto blocks = static_cast<unsigned>(blocks_of(task));
    if (amax.scalar_type() == at::kFloat)
      run_blocks(blocks, kScaleThreads, scale_each<float>, task);
    else
      run_blocks(blocks, kScaleThreads, scale_each<__nv_bfloat16>, task);
    CHECK((scale[-1].item<float>() == -1 && inverse[-1].item<float>() == -1));
    return Scales{scale.narrow(0, 0, amax.numel()), inverse.narrow(0, 0, amax.numel())};
  };
  const Tensor powers = at::exp2(at::arange(-126, 128));
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor special = at::tensor({0.0F, 1e-12F, 1e-13F, 1e-45F, 3.4e38F, infinity, std::nanf(""), 448.0F});
  const Tensor every = at::cat({powers, powers * 1.75, at::rand({3000}).mul(30), special});
  for (const at::ScalarType from : {at::kFloat, at::kBFloat16})
    for (const at::ScalarType dtype : {kE4m3, kE5m2})
      for (const bool power_of_two : {false, true}) {
        const Tensor amax = every.to(from);
        INFO(from << " to " << dtype << (power_of_two ? ", powers of two" : ""));
        const Scales found = run(amax, dtype == kE4m3 ? 448 : 57344, power_of_two);
        const Scales wanted = scales_of(amax, dtype, power_of_two);
        CHECK(same_bits(found.scale, wanted.scale));
        CHECK(same_bits(found.inverse, wanted.inverse));
      }
}

TEST_CASE("the source of the CUDA rescaling gives the bits of the plain form") {
  at::manual_seed(9);
  for (const auto& [m, n] : {std::pair(1, 16), std::pair(3, 48), std::pair(70, 144)}) {
    const Tensor product = at::randn({m + 1, n}).mul(1000).to(at::kBFloat16);
    for (const Tensor& row : {at::rand({m, 1}), at::full({}, 0.3)})
      for (const Tensor& column : {at::rand({1, n}), at::full({}, 1e-3)}) {
        Tensor ours = product.clone(), plain = product.narrow(0, 0, m).clone();
        const RescaleTask task = {.product = ours.mutable_data_ptr(),
                                  .m = m,
                                  .n = n,
                                  .row = row.const_data_ptr<float>(),
                                  .column = column.const_data_ptr<float>(),
                                  .each_row = row.numel() > 1,
                                  .each_column = column.numel() > 1};
        run_blocks(static_cast<unsigned>(blocks_of(task)), kRescaleThreads, rescale_chunk, task);
        CHECK(ours.narrow(0, 0, m).equal(rescale_in_place(plain, row, column)));
        CHECK(ours[m].equal(product[m]));
      }
  }
}

TEST_CASE("the CUDA library brings the FP8 operators of its tensors") {
  // A call into the file that defines the operator of groups: the linker leaves out what nothing calls.
  REQUIRE(float8::why_not_grouped(/*blocks=*/false, /*compute_capability=*/90) == nullptr);
  const auto have_kernel = [](const char* name) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
    return op.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  };
  const auto operators = {
      "hyperion::float8_cast",        "hyperion::float8_cast_by_amax", "hyperion::float8_cast_into_",
      "hyperion::float8_scales",      "hyperion::float8_rescale_",     "hyperion::mx_cast",
      "hyperion::float8_cast_groups", "hyperion::float8_amax_groups",  "hyperion::float8_cast_stack"};
  for (const char* name : operators) CHECK(!have_kernel(name));
  REQUIRE(load_device_library() == "");
  for (const char* name : operators) CHECK(have_kernel(name));
}

}  // namespace hyperion::models
