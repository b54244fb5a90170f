// The operators of cast.h, quantize.h and scaled_matmul.h for CUDA tensors.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "models/float8/cast.h"
#include "models/float8/cuda/launch.h"

namespace hyperion::float8 {
namespace {

using at::Tensor;

// As the kernel reads it: without gaps, from a multiple of 16 bytes on.
Tensor packed(const Tensor& x) {
  const Tensor dense = x.contiguous();
  return reinterpret_cast<uintptr_t>(dense.const_data_ptr()) % 16 == 0 ? dense : dense.clone();
}

Tensor packed_scale(const Tensor& scale, int64_t many, const Tensor& x) {
  TORCH_CHECK(scale.device() == x.device() && scale.scalar_type() == at::kFloat &&
                  (scale.numel() == 1 || scale.numel() == many),
              "FP8: a scale of ", scale.numel(), " numbers in ", scale.scalar_type(), " on ", scale.device(),
              ": expected 1 or ", many, " in fp32 on ", x.device());
  return packed(scale);
}

From source_of(const Tensor& x) {
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16, "FP8 from ", x.scalar_type(),
              ": expected fp32 or bf16");
  return x.scalar_type() == at::kFloat ? From::kFloat : From::kBFloat16;
}

cudaStream_t stream_for(const Tensor& x) {
  return c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
}

std::tuple<Tensor, Tensor> cast_on_cuda(const Tensor& given, const std::optional<Tensor>& row_scale,
                                        const std::optional<Tensor>& column_scale, at::ScalarType dtype) {
  TORCH_CHECK(given.dim() == 2 && given.size(1) % 16 == 0, "float8_cast: x of ", given.sizes(),
              ": expected a matrix whose last extent is a multiple of 16");
  const c10::cuda::CUDAGuard on(given.device());
  const Tensor x = packed(given);
  const From from = x.scalar_type() == dtype ? From::kFloat8 : source_of(x);
  CastTask task{.x = x.const_data_ptr(), .m = x.size(0), .n = x.size(1)};
  Tensor rows, columns, scale_of_rows, scale_of_columns;
  if (row_scale) {
    TORCH_CHECK(from != From::kFloat8, "float8_cast: x is FP8 already and its own row-major copy");
    scale_of_rows = packed_scale(*row_scale, task.m, x);
    rows = at::empty({task.m, task.n}, x.options().dtype(dtype));
    task.row_scale = scale_of_rows.const_data_ptr<float>();
    task.scale_each_row = scale_of_rows.numel() > 1;
    task.rows = static_cast<uint8_t*>(rows.mutable_data_ptr());
  }
  if (column_scale) {
    scale_of_columns = packed_scale(*column_scale, task.n, x);
    task.padded_m = (task.m + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
    columns = at::empty({task.n, task.padded_m}, x.options().dtype(dtype));
    task.column_scale = scale_of_columns.const_data_ptr<float>();
    task.scale_each_column = scale_of_columns.numel() > 1;
    task.columns = static_cast<uint8_t*>(columns.mutable_data_ptr());
  }
  C10_CUDA_CHECK(launch_cast(task, from, dtype == kE5m2, stream_for(x)));
  return {rows, columns.defined() ? columns.t() : columns};
}

std::tuple<Tensor, Tensor> scales_on_cuda(const Tensor& given, double largest, bool power_of_two) {
  const c10::cuda::CUDAGuard on(given.device());
  const Tensor amax = given.contiguous();
  const auto options = amax.options().dtype(at::kFloat);
  Tensor scale = at::empty_like(amax, options), inverse = at::empty_like(amax, options);
  const ScaleTask task = {.amax = amax.const_data_ptr(),
                          .count = amax.numel(),
                          .scale = scale.mutable_data_ptr<float>(),
                          .inverse = inverse.mutable_data_ptr<float>(),
                          .largest = largest,
                          .power_of_two = power_of_two};
  C10_CUDA_CHECK(launch_scale(task, source_of(amax), stream_for(amax)));
  return {scale, inverse};
}

Tensor& rescale_on_cuda(Tensor& product, const Tensor& row, const Tensor& column) {
  TORCH_CHECK(product.dim() == 2 && product.scalar_type() == at::kBFloat16 && product.is_contiguous() &&
                  product.size(1) % 8 == 0 && reinterpret_cast<uintptr_t>(product.const_data_ptr()) % 16 == 0,
              "float8_rescale: a product of ", product.sizes(), " in ", product.scalar_type(),
              ": expected rows of a multiple of 8 numbers in bf16, without gaps");
  const c10::cuda::CUDAGuard on(product.device());
  const Tensor rows = packed_scale(row, product.size(0), product),
               columns = packed_scale(column, product.size(1), product);
  const RescaleTask task = {.product = product.mutable_data_ptr(),
                            .m = product.size(0),
                            .n = product.size(1),
                            .row = rows.const_data_ptr<float>(),
                            .column = columns.const_data_ptr<float>(),
                            .each_row = rows.numel() > 1,
                            .each_column = columns.numel() > 1};
  C10_CUDA_CHECK(launch_rescale(task, stream_for(product)));
  return product;
}

TORCH_LIBRARY_IMPL(hyperion, CUDA, library) {
  library.impl("float8_cast", cast_on_cuda);
  library.impl("float8_scales", scales_on_cuda);
  library.impl("float8_rescale_", rescale_on_cuda);
}

}  // namespace
}  // namespace hyperion::float8
