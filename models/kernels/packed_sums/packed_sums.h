// Sums of rows that travel in 16 bits an element with an error below that of bf16: a token's rows are summed
// in fp32 and each block of kPackedBlock elements is scaled by its largest one and rounded to int16. The
// receiver sums several of them in fp32 and rounds once. A block with a number that is not finite is NaN.
//
// The error of a block is at most 2^-16 of its largest element for each element; its norm is at most that
// times 8, 2^-13, where a rounding of the largest element alone to bf16 has up to 2^-9.
#pragma once

#include "models/kernels/kernel.h"
#include "models/kernels/packed_sums/packed_block.h"

namespace hyperion::kernels {

// Sums for each token the rows [rows, n] of its assignments, multiplied by `weights` [tokens, top_k], and
// packs the sums: uint8 [tokens, bytes_of_packed_row(n)]. Rows whose weight is zero are not read.
using PackRowSums = at::Tensor(const at::Tensor& rows, const at::Tensor& row_of_assignment,
                               const at::Tensor& weights);
// Sums packed rows of n elements in the same way, adds `added` [tokens, n] last if defined, and rounds the
// sums to `dtype`, which `added` has.
using SumPackedRows = at::Tensor(const at::Tensor& packed, const at::Tensor& row_of_assignment,
                                 const at::Tensor& weights, const at::Tensor& added, int64_t n,
                                 at::ScalarType dtype);

namespace plain {
PackRowSums pack_row_sums;
SumPackedRows sum_packed_rows;
}  // namespace plain

namespace cpu {
PackRowSums pack_row_sums;
SumPackedRows sum_packed_rows;
}  // namespace cpu

}  // namespace hyperion::kernels
