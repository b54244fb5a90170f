// Products of groups of rows with the matrices of a stack in FP8, as those of experts: which numbers share a
// scale, and libtorch's scaled grouped product or its exact definition. Groups of rows are padded with zeros
// (models/kernels/matmul/grouped.h, pad_groups()) to multiples of kRowMultiple, or of kBlock for MXFP8.
// Scalings and their rounding are torchao 0.18's (prototype/moe_training), with its bits.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/float8/scaled_matmul.h"

namespace hyperion::float8 {

// `ends`: int32 [groups], where each group of rows ends, as PaddedGroups::ends.

// x [rows, n] by columns, to be summed over the rows of each group: values [n, rows] in e4m3, row-major.
//   kColumn       a column of a group shares a scale, a power of two: scale and inverse [groups, n]
//   kColumnBlock  32 rows of a column do: scale [n, rows / 32] in E8M0
// What lies behind the last group is undefined.
Quantized cast_columns_of_groups(const at::Tensor& x, const at::Tensor& ends, const Scaling& scaling);

// For each group: its rows of a times the transpose of its matrix of `stack` -> [rows, n] in `out`. What lies
// behind the last group is undefined.
//   a      values [rows, k], scale [rows, 1] or, of blocks, [rows, k / 32]
//   stack  values [groups, n, k], scale [groups, n] or [groups, n, k / 32]
at::Tensor scaled_grouped_matmul(const Quantized& a, const Quantized& stack, const at::Tensor& ends,
                                 at::ScalarType out, Gemm gemm);
// For each group: a times the transpose of b, both by columns as cast_columns_of_groups() makes them,
// [m, rows] and [n, rows], summed over its rows -> [groups, m, n] in `out`.
at::Tensor scaled_grouped_outer_matmul(const Quantized& a, const Quantized& b, const at::Tensor& ends,
                                       at::ScalarType out, Gemm gemm);

// Why libtorch has no scaled grouped product on a GPU of that compute capability (90 for 9.0); null: it has.
const char* why_not_grouped(bool blocks, int compute_capability);

// The layouts in which that product reads the scales of MXFP8, each in tiles of 128 x 4 (scales_for_cublas).
// Each group of rows begins with a tile of its own: [rows, blocks] -> [rows or more, blocks or more].
at::Tensor scales_of_row_groups(const at::Tensor& scale, const at::Tensor& ends);
// Where blocks are of rows, the tiles of each group lie together: [m, rows / 32] -> [m or more, more].
at::Tensor scales_of_block_groups(const at::Tensor& scale, const at::Tensor& ends);
// Of a stack, each matrix by itself: [groups, n, blocks] -> [groups, numbers].
at::Tensor scales_of_stack(const at::Tensor& scale);

}  // namespace hyperion::float8
