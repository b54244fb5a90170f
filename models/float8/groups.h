// Grouped FP8 products, as those of experts: each group of rows is multiplied by its matrix of a stack. They
// run as libtorch's scaled grouped product or as its exact definition. Groups of rows are padded with zeros
// (models/kernels/matmul/grouped.h, pad_groups()) to multiples of kRowMultiple, or of kBlock for MXFP8.
// Scalings and rounding have the bits of torchao 0.18 (prototype/moe_training).
#pragma once

#include <ATen/core/Tensor.h>

#include "models/float8/cast.h"
#include "models/float8/scaled_matmul.h"

namespace hyperion::float8 {

// `ends` is int32 [groups]: the end of each group of rows, as PaddedGroups::ends. Elements behind the last
// group are undefined in every result.

// Returns the largest magnitude in each column of each group of x [rows, n] -> fp32 [groups, n]; zeros for an
// empty group, NaN if there is one. On a GPU n must be a multiple of 16, and one kernel reads x once.
at::Tensor amax_of_groups(const at::Tensor& x, const at::Tensor& ends);
namespace plain {
at::Tensor amax_of_groups(const at::Tensor& x, const at::Tensor& ends);
}

// Casts x [rows, n] by columns, for products that sum over the rows of each group: values [n, rows] in e4m3,
// row-major.
//   kColumn       each column of a group has one scale, a power of two: scale and inverse [groups, n]
//   kColumnBlock  each 32 rows of a column have one scale: scale [n, rows / 32] in E8M0
Quantized cast_columns_of_groups(const at::Tensor& x, const at::Tensor& ends, const Scaling& scaling);

// Casts the matrices of a stack [matrices, n, k] to e4m3 by rows and by columns; a row or a column has one
// scale, a power of two:
//   rows     values [matrices, n, k], scale and inverse [matrices, n]
//   columns  values [matrices, k, n], scale and inverse [matrices, k]
// The stack may be a shard along n (dim 1) or k (dim 2) of that which `group` has. On a GPU n and k must be
// multiples of 16, and one kernel makes both copies.
Operands cast_stack(const at::Tensor& stack, const PartOf& part);

// Multiplies the rows of each group by the transpose of its matrix -> [rows, n] in `out`.
//   a      values [rows, k], scale [rows, 1] or [rows, k / 32]
//   stack  values [groups, n, k], scale [groups, n] or [groups, n, k / 32]
at::Tensor scaled_grouped_matmul(const Quantized& a, const Quantized& stack, const at::Tensor& ends,
                                 at::ScalarType out, Gemm gemm);
// Multiplies a [m, rows] by the transpose of b [n, rows], summed over the rows of each group -> [groups, m,
// n] in `out`. Both come from cast_columns_of_groups().
at::Tensor scaled_grouped_outer_matmul(const Quantized& a, const Quantized& b, const at::Tensor& ends,
                                       at::ScalarType out, Gemm gemm);

// Returns why libtorch has no scaled grouped product on a GPU of that compute capability (90 for 9.0); null
// if it has.
const char* why_not_grouped(bool blocks, int compute_capability);

// These convert MXFP8 scales to the layouts of that product, in tiles of 128 x 4 (scales_for_cublas()).

// Scales of groups of rows: each group begins with a new tile. [rows, blocks] -> [rows or more, blocks or
// more].
at::Tensor scales_of_row_groups(const at::Tensor& scale, const at::Tensor& ends);
// Scales of blocks along the rows: the tiles of each group are contiguous. [m, rows / 32] -> [m or more,
// more].
at::Tensor scales_of_block_groups(const at::Tensor& scale, const at::Tensor& ends);
// Scales of a stack: each matrix has its own tiles. [groups, n, blocks] -> [groups, numbers].
at::Tensor scales_of_stack(const at::Tensor& scale);

}  // namespace hyperion::float8
