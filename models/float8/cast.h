// A matrix as operands of FP8 products: cast into the layouts that they want, from one read.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "models/float8/quantize.h"

namespace hyperion::float8 {

// What the hardware wants of the extent that a product sums over; columns are filled up to it with zeros.
inline constexpr int64_t kRowMultiple = 16;

struct Copies {
  at::Tensor rows;     // [m, n], row-major
  at::Tensor columns;  // [m rounded up to kRowMultiple, n], column-major
};

// Copies of x [m, n] in an FP8 dtype, with the bits of saturating_cast. row_scale: 0-dim or [m, 1];
// column_scale: 0-dim or [1, n]; a copy whose scale is undefined is not made. x may also be in `dtype`
// already: then only columns are made, of its very bits. On a GPU, where n must be a multiple of 16, one
// kernel reads x once (models/float8/cuda); rows with gaps between them need no copy of x where they begin at
// multiples of 16 bytes.
Copies cast(const at::Tensor& x, const at::Tensor& row_scale, const at::Tensor& column_scale,
            at::ScalarType dtype);

// x to `out` [m, n], as the row-major copy of cast(). scale: 0-dim.
void cast_into(const at::Tensor& out, const at::Tensor& x, const at::Tensor& scale);

struct Operands {
  Quantized rows, columns;  // laid out as Copies
};

// The copies of cast(), by scales_of() their amaxes, which are made on the way: of one tensor for both where
// row_amax and column_amax are one. An undefined amax: no such copy. On a GPU one kernel makes all of it.
Operands cast_by_amax(const at::Tensor& x, const at::Tensor& row_amax, const at::Tensor& column_amax,
                      at::ScalarType dtype, bool power_of_two);

namespace plain {
Copies cast(const at::Tensor& x, const at::Tensor& row_scale, const at::Tensor& column_scale,
            at::ScalarType dtype);
Operands cast_by_amax(const at::Tensor& x, const at::Tensor& row_amax, const at::Tensor& column_amax,
                      at::ScalarType dtype, bool power_of_two);
}  // namespace plain

// Dynamic scales, then the copies that have a scaling; both in one dtype and both or neither of powers of
// two, with one scale where the scalings are equal. x may be a part of a matrix.
Operands quantize_operands(const at::Tensor& x, const std::optional<Scaling>& rows,
                           const std::optional<Scaling>& columns, const PartOf& part = {});

}  // namespace hyperion::float8
