// Casts of a matrix to the operands of FP8 products, in the layouts that the products read.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "models/float8/quantize.h"

namespace hyperion::float8 {

// The hardware needs a multiple of this as the extent that a product sums over; columns are padded with
// zeros.
inline constexpr int64_t kRowMultiple = 16;

struct Copies {
  at::Tensor rows;     // [m, n], row-major
  at::Tensor columns;  // [m rounded up to kRowMultiple, n], column-major
};

// Casts x [m, n] to an FP8 dtype, with the bits of saturating_cast(). row_scale: 0-dim or [m, 1];
// column_scale: 0-dim or [1, n]. No copy is made for an undefined scale. If x has `dtype` already, only
// columns are made, with its bits. On a GPU n must be a multiple of 16, and one kernel reads x once
// (models/float8/cuda); rows may have gaps between them if they begin at multiples of 16 bytes.
Copies cast(const at::Tensor& x, const at::Tensor& row_scale, const at::Tensor& column_scale,
            at::ScalarType dtype);

// Casts x to `out` [m, n], with the bits of cast()'s row-major copy. scale: 0-dim.
void cast_into(const at::Tensor& out, const at::Tensor& x, const at::Tensor& scale);

struct Operands {
  Quantized rows, columns;  // in the layouts of Copies
};

// Computes scales_of() the amaxes and the copies of cast() with them. If row_amax and column_amax are one
// tensor, so are the scales. No copy is made for an undefined amax. On a GPU one kernel does all of it.
Operands cast_by_amax(const at::Tensor& x, const at::Tensor& row_amax, const at::Tensor& column_amax,
                      at::ScalarType dtype, bool power_of_two);

namespace plain {
Copies cast(const at::Tensor& x, const at::Tensor& row_scale, const at::Tensor& column_scale,
            at::ScalarType dtype);
Operands cast_by_amax(const at::Tensor& x, const at::Tensor& row_amax, const at::Tensor& column_amax,
                      at::ScalarType dtype, bool power_of_two);
}  // namespace plain

// Computes dynamic scales, then a copy for each scaling that is given. Both scalings have the same dtype and
// power_of_two; equal scalings share one scale. x may be a shard of a matrix.
Operands quantize_operands(const at::Tensor& x, const std::optional<Scaling>& rows,
                           const std::optional<Scaling>& columns, const PartOf& part = {});

}  // namespace hyperion::float8
