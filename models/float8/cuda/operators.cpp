// The operators of cast.h, groups.h, quantize.h and scaled_matmul.h for CUDA tensors.
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "models/float8/blocks.h"
#include "models/float8/cast.h"
#include "models/float8/cuda/launch.h"

namespace hyperion::float8 {
namespace {

using at::Tensor;

bool aligned(const Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

// Returns x without gaps, at an address that is a multiple of 16 bytes.
Tensor packed(const Tensor& x) {
  const Tensor dense = x.contiguous();
  return aligned(dense) ? dense : dense.clone();
}

// A matrix as the cast reads it: rows may have gaps, and begin at multiples of 16 bytes.
Tensor with_aligned_rows(const Tensor& x) {
  const bool whole_rows = x.stride(1) == 1 && x.stride(0) >= x.size(1);
  return whole_rows && aligned(x) && x.stride(0) * x.element_size() % 16 == 0 ? x : packed(x);
}

Tensor packed_scale(const Tensor& scale, int64_t many, const Tensor& x) {
  TORCH_CHECK(scale.device() == x.device() && scale.scalar_type() == at::kFloat &&
                  (scale.numel() == 1 || scale.numel() == many),
              "FP8: a scale of ", scale.numel(), " numbers in ", scale.scalar_type(), " on ", scale.device(),
              ": expected 1 or ", many, " in fp32 on ", x.device());
  return scale.contiguous();
}

From source_of(const Tensor& x) {
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16, "FP8 from ", x.scalar_type(),
              ": expected fp32 or bf16");
  return x.scalar_type() == at::kFloat ? From::kFloat : From::kBFloat16;
}

cudaStream_t stream_for(const Tensor& x) {
  return c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
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

// One launch of the cast, and the tensors that it reads and writes.
class Cast {
 public:
  Cast(const Tensor& x, at::ScalarType dtype, bool power_of_two = false)
      : x_(checked(x)), dtype_(dtype), power_of_two_(power_of_two) {
    task_.x = x_.const_data_ptr();
    task_.m = x_.size(0);
    task_.n = x_.size(1);
    task_.stride = x_.stride(0);
    from_ = x_.scalar_type() == dtype ? From::kFloat8 : source_of(x_);
  }

  Tensor rows() {
    TORCH_CHECK(from_ != From::kFloat8, "float8_cast: x is FP8 already and its own row-major copy");
    Tensor made = at::empty({task_.m, task_.n}, x_.options().dtype(dtype_));
    task_.rows = static_cast<uint8_t*>(made.mutable_data_ptr());
    return made;
  }
  void rows_into(const Tensor& out) {
    TORCH_CHECK(from_ != From::kFloat8 && out.sizes() == x_.sizes() && out.is_contiguous() &&
                    reinterpret_cast<uintptr_t>(out.const_data_ptr()) % 16 == 0,
                "float8_cast_into_: from ", x_.sizes(), " to ", out.sizes(),
                ": expected rows of the same shape without gaps, from a multiple of 16 bytes on");
    task_.rows = static_cast<uint8_t*>(out.mutable_data_ptr());
  }
  Tensor columns() {
    task_.padded_m = (task_.m + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
    Tensor made = at::empty({task_.n, task_.padded_m}, x_.options().dtype(dtype_));
    task_.columns = static_cast<uint8_t*>(made.mutable_data_ptr());
    return made.t();
  }

  // Takes x as a stack of `matrices` and returns [matrices, n, rows of each]. Each matrix has the scales of
  // its columns, [matrices, n].
  Tensor columns_of_stack(int64_t matrices, const Tensor& scale) {
    task_.stack_rows = matrices == 0 ? 0 : task_.m / matrices;
    TORCH_CHECK(task_.stack_rows * matrices == task_.m && task_.stack_rows % kRowMultiple == 0 &&
                    scale.numel() == matrices * task_.n,
                "float8_cast_stack: ", matrices, " matrices of ", task_.m, " rows in all, and ",
                scale.numel(), " scales: expected a multiple of 16 rows in each, and ", matrices * task_.n,
                " scales");
    Tensor made = at::empty({matrices, task_.n, task_.stack_rows}, x_.options().dtype(dtype_));
    task_.columns = static_cast<uint8_t*>(made.mutable_data_ptr());
    task_.padded_m = task_.m;
    task_.column_scales = given(scale, scale.numel());
    return made;
  }

  void scale_rows_by(const Tensor& scale) { task_.row_scales = given(scale, task_.m); }
  void scale_columns_by(const Tensor& scale) { task_.column_scales = given(scale, task_.n); }
  // scale [groups, n], group int64 [m]
  void scale_columns_by_group(const Tensor& scale, const Tensor& group) {
    TORCH_CHECK(scale.dim() == 2 && scale.size(1) == task_.n && group.scalar_type() == at::kLong &&
                    group.numel() == task_.m && group.device() == x_.device(),
                "float8_cast_groups: scales of ", scale.sizes(), " and groups of ", group.sizes(), " for ",
                x_.sizes());
    task_.column_scales = given(scale, scale.numel());
    task_.groups = inputs_.emplace_back(group.contiguous()).const_data_ptr<int64_t>();
  }
  Scales scale_rows_of(const Tensor& amax) { return made_of(amax, task_.m, task_.row_scales); }
  Scales scale_columns_of(const Tensor& amax) { return made_of(amax, task_.n, task_.column_scales); }
  // Scales columns as rows are scaled, by one scale for the tensor.
  void scale_columns_as_rows() { task_.column_scales = task_.row_scales; }

  void launch() {
    task_.largest = largest_of(dtype_);
    task_.power_of_two = power_of_two_;
    C10_CUDA_CHECK(launch_cast(task_, from_, dtype_ == kE5m2, stream_for(x_)));
  }

 private:
  static Tensor checked(const Tensor& x) {
    TORCH_CHECK(x.dim() == 2 && x.size(1) % 16 == 0, "float8_cast: x of ", x.sizes(),
                ": expected a matrix whose last extent is a multiple of 16");
    return with_aligned_rows(x);
  }
  CastScales given(const Tensor& scale, int64_t many) {
    const Tensor& kept = inputs_.emplace_back(packed_scale(scale, many, x_));
    return {.each = kept.numel() > 1, .scale = kept.const_data_ptr<float>()};
  }
  Scales made_of(const Tensor& amax, int64_t many, CastScales& scales) {
    TORCH_CHECK(amax.device() == x_.device() && (amax.numel() == 1 || amax.numel() == many),
                "FP8: an amax of ", amax.numel(), " numbers on ", amax.device(), ": expected 1 or ", many,
                " on ", x_.device());
    const Tensor& kept = inputs_.emplace_back(amax.contiguous());
    if (x_.numel() == 0) {  // no tile would make them
      const auto [scale, inverse] = scales_on_cuda(kept, largest_of(dtype_), power_of_two_);
      return {scale, inverse};
    }
    const auto options = kept.options().dtype(at::kFloat);
    Scales made = {at::empty_like(kept, options), at::empty_like(kept, options)};
    scales = {.each = kept.numel() > 1,
              .amax = kept.const_data_ptr(),
              .amax_is_bf16 = source_of(kept) == From::kBFloat16,
              .made_scale = made.scale.mutable_data_ptr<float>(),
              .made_inverse = made.inverse.mutable_data_ptr<float>()};
    return made;
  }

  Tensor x_;
  at::ScalarType dtype_;
  bool power_of_two_;  // of scales that are made of amaxes
  From from_ = From::kFloat;
  CastTask task_;
  std::vector<Tensor> inputs_;
};

std::tuple<Tensor, Tensor> cast_on_cuda(const Tensor& x, const std::optional<Tensor>& row_scale,
                                        const std::optional<Tensor>& column_scale, at::ScalarType dtype) {
  const c10::cuda::CUDAGuard on(x.device());
  Cast cast(x, dtype);
  Tensor rows, columns;
  if (row_scale) {
    rows = cast.rows();
    cast.scale_rows_by(*row_scale);
  }
  if (column_scale) {
    columns = cast.columns();
    cast.scale_columns_by(*column_scale);
  }
  cast.launch();
  return {rows, columns};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> cast_by_amax_on_cuda(
    const Tensor& x, const std::optional<Tensor>& row_amax, const std::optional<Tensor>& column_amax,
    at::ScalarType dtype, bool power_of_two) {
  const c10::cuda::CUDAGuard on(x.device());
  Operands made;
  Cast cast(x, dtype, power_of_two);
  if (row_amax) {
    made.rows.values = cast.rows();
    const Scales scales = cast.scale_rows_of(*row_amax);
    made.rows.scale = scales.scale;
    made.rows.inverse = scales.inverse;
  }
  if (column_amax) {
    made.columns.values = cast.columns();
    if (row_amax && row_amax->is_same(*column_amax)) {
      cast.scale_columns_as_rows();
      made.columns.scale = made.rows.scale;
      made.columns.inverse = made.rows.inverse;
    } else {
      const Scales scales = cast.scale_columns_of(*column_amax);
      made.columns.scale = scales.scale;
      made.columns.inverse = scales.inverse;
    }
  }
  cast.launch();
  return {made.rows.values,  made.columns.values, made.rows.scale,
          made.rows.inverse, made.columns.scale,  made.columns.inverse};
}

Tensor amax_groups_on_cuda(const Tensor& given, const Tensor& ends) {
  TORCH_CHECK(given.dim() == 2 && given.size(1) % 16 == 0 && ends.scalar_type() == at::kInt &&
                  ends.dim() == 1 && ends.device() == given.device(),
              "float8_amax_groups: groups of ", ends.sizes(), " for ", given.sizes(),
              ": expected int32 ends on the same device, and a last extent that is a multiple of 16");
  const c10::cuda::CUDAGuard on(given.device());
  const Tensor x = with_aligned_rows(given), group_ends = ends.contiguous();
  Tensor amax = at::zeros({ends.size(0), x.size(1)}, x.options().dtype(at::kFloat));
  const GroupAmaxTask task = {.x = x.const_data_ptr(),
                              .stride = x.stride(0),
                              .m = x.size(0),
                              .n = x.size(1),
                              .ends = group_ends.const_data_ptr<int32_t>(),
                              .groups = static_cast<int>(ends.size(0)),
                              .amax = static_cast<unsigned*>(amax.mutable_data_ptr())};
  C10_CUDA_CHECK(launch_group_amax(task, source_of(x), stream_for(x)));
  return amax;
}

Tensor cast_groups_on_cuda(const Tensor& x, const Tensor& scale, const Tensor& group) {
  const c10::cuda::CUDAGuard on(x.device());
  Cast cast(x, kE4m3);
  const Tensor columns = cast.columns();
  cast.scale_columns_by_group(scale, group);
  cast.launch();
  return columns.t();
}

std::tuple<Tensor, Tensor, Tensor, Tensor> cast_stack_on_cuda(const Tensor& stack, const Tensor& row_amax,
                                                              const Tensor& column_scale, bool power_of_two) {
  TORCH_CHECK(stack.dim() == 3, "float8_cast_stack: x of ", stack.sizes(), ": expected a stack of matrices");
  const c10::cuda::CUDAGuard on(stack.device());
  Cast cast(stack.reshape({-1, stack.size(2)}), kE4m3, power_of_two);
  const Tensor rows = cast.rows();
  const Scales scales = cast.scale_rows_of(row_amax);
  const Tensor columns = cast.columns_of_stack(stack.size(0), column_scale);
  cast.launch();
  return {rows.view(stack.sizes()), columns, scales.scale, scales.inverse};
}

Tensor& cast_into_on_cuda(Tensor& out, const Tensor& x, const Tensor& scale) {
  const c10::cuda::CUDAGuard on(x.device());
  Cast cast(x, out.scalar_type());
  cast.rows_into(out);
  cast.scale_rows_by(scale);
  cast.launch();
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> mx_cast_on_cuda(const Tensor& given, bool rows, bool columns,
                                                           bool rounds_up) {
  TORCH_CHECK(given.dim() == 2 && given.size(1) % kBlock == 0, "mx_cast: x of ", given.sizes(),
              ": expected a matrix whose last extent is a multiple of 32");
  const c10::cuda::CUDAGuard on(given.device());
  const Tensor x = packed(given);
  MxTask task = {.x = x.const_data_ptr(), .m = x.size(0), .n = x.size(1), .rounds_up = rounds_up};
  task.padded_m = (task.m + kBlock - 1) / kBlock * kBlock;
  const auto make = [&](int64_t lines, int64_t numbers, uint8_t*& values, uint8_t*& scales) {
    const Tensor made = at::empty({lines, numbers}, x.options().dtype(kE4m3)),
                 of_blocks = at::empty({lines, numbers / kBlock}, x.options().dtype(kE8m0));
    values = static_cast<uint8_t*>(made.mutable_data_ptr());
    scales = static_cast<uint8_t*>(of_blocks.mutable_data_ptr());
    return std::pair(made, of_blocks);
  };
  Tensor row_values, row_scales, column_values, column_scales;
  if (rows) std::tie(row_values, row_scales) = make(task.m, task.n, task.rows, task.row_scales);
  if (columns) {
    std::tie(column_values, column_scales) = make(task.n, task.padded_m, task.columns, task.column_scales);
    column_values = column_values.t();
    column_scales = column_scales.t();
  }
  C10_CUDA_CHECK(launch_mx(task, source_of(x), stream_for(x)));
  return {row_values, column_values, row_scales, column_scales};
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
  library.impl("float8_cast_by_amax", cast_by_amax_on_cuda);
  library.impl("float8_amax_groups", amax_groups_on_cuda);
  library.impl("float8_cast_groups", cast_groups_on_cuda);
  library.impl("float8_cast_stack", cast_stack_on_cuda);
  library.impl("float8_cast_into_", cast_into_on_cuda);
  library.impl("float8_scales", scales_on_cuda);
  library.impl("mx_cast", mx_cast_on_cuda);
  library.impl("float8_rescale_", rescale_on_cuda);
}

}  // namespace
}  // namespace hyperion::float8
