// The CUDA kernel behind the FP8 cast without a GPU: its source on CPU threads against the plain form, and
// its place in libtorch's dispatcher. tests/gpu/float8_test.cpp runs the compiled one.
#include <catch2/catch.hpp>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include "models/float8/cast.h"
#include "parallel/device_library.h"
#include "tests/unit/models/float8_bits.h"

// The kernel comes after what stands in for CUDA.
// clang-format off
#include "tests/unit/models/cuda_on_cpu.h"
#include "models/float8/cuda/cast_kernel.cuh"
// clang-format on

using namespace hyperion;
using namespace hyperion::float8;
using at::Tensor;

namespace {

constexpr int64_t kGuard = 64;  // bytes after each output that must stay as they are

struct Output {
  Tensor bytes;
  explicit Output(int64_t size) : bytes(torch::full({size + kGuard}, 0xa5, torch::kByte)) {}
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
  CastTask task{.x = x.const_data_ptr(), .m = m, .n = n};
  if (row_scale.defined()) {
    task.row_scale = row_scale.const_data_ptr<float>();
    task.scale_each_row = row_scale.numel() > 1;
    task.rows = rows.data();
  }
  if (column_scale.defined()) {
    task.column_scale = column_scale.const_data_ptr<float>();
    task.scale_each_column = column_scale.numel() > 1;
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

}  // namespace

TEST_CASE("the source of the CUDA cast gives the bits of the plain form") {
  torch::manual_seed(7);
  for (const at::ScalarType from : {at::kFloat, at::kBFloat16})
    for (const at::ScalarType dtype : {kE4m3, kE5m2})
      for (const auto& [m, n] : {std::pair(1, 16), std::pair(63, 80), std::pair(130, 144)}) {
        const Tensor x = troublesome(m, n).to(from);
        const Tensor row_scale = torch::rand({m, 1}).mul(500), column_scale = torch::rand({1, n}).mul(500);
        const Tensor one = torch::full({}, 2.5);
        check_kernel(x, row_scale, column_scale, dtype);
        check_kernel(x, one, one, dtype);
        check_kernel(x, row_scale, {}, dtype);
        check_kernel(x, {}, column_scale, dtype);
        check_kernel(plain::cast(x, one, {}, dtype).rows, {}, one, dtype);
      }
}

TEST_CASE("the source of the CUDA cast rounds every bf16 number and many of fp32 as libtorch does") {
  const Tensor every = torch::arange(65536, torch::kInt).to(at::kShort).view(at::kBFloat16).view({512, 128});
  const Tensor many =
      torch::randint(INT32_MIN, INT32_MAX, {1024, 64}, torch::kLong).to(at::kInt).view(at::kFloat);
  for (const at::ScalarType dtype : {kE4m3, kE5m2})
    for (const double scale : {1.0, 448e12, 0.0, 1.7e-5}) {
      const Tensor one = torch::full({}, scale);
      check_kernel(every, one, {}, dtype);
      check_kernel(many, one, {}, dtype);
      // halfway between FP8 numbers, and a little to either side
      const Tensor numbers = torch::arange(256, torch::kInt).to(at::kByte).view(dtype).to(at::kFloat);
      const Tensor halfway = (numbers + numbers.roll(1)) / 2;
      check_kernel(torch::cat({halfway, halfway * (1 + 1e-6), halfway * (1 - 1e-6)}).view({12, 64}), one, {},
                   dtype);
    }
}

TEST_CASE("the CUDA library brings the FP8 cast of its tensors") {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("hyperion::float8_cast", "");
  CHECK(!op.hasKernelForDispatchKey(c10::DispatchKey::CUDA));
  REQUIRE(load_device_library() == "");
  CHECK(op.hasKernelForDispatchKey(c10::DispatchKey::CUDA));
}
