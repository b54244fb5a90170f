#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full_like.h>

#include "models/kernels/packed_sums/packed_sums.h"

namespace hyperion::kernels::plain {
namespace {

using at::Tensor;

// Returns the sums in fp32 of rows [rows, n] for each token.
Tensor sums_of_rows(const Tensor& rows, const Tensor& row_of_assignment, const Tensor& weights) {
  const Tensor factors = weights.unsqueeze(2);
  const Tensor terms = rows.index_select(0, row_of_assignment)
                           .view({weights.size(0), weights.size(1), rows.size(1)})
                           .to(at::kFloat)
                           .masked_fill(factors.eq(0), 0);
  return terms.mul(factors).sum(1);
}

}  // namespace

Tensor pack_row_sums(const Tensor& rows, const Tensor& row_of_assignment, const Tensor& weights) {
  const int64_t n = rows.size(1), blocks = (n + kPackedBlock - 1) / kPackedBlock;
  const Tensor sums =
      at::constant_pad_nd(sums_of_rows(rows, row_of_assignment, weights), {0, blocks * kPackedBlock - n})
          .view({-1, blocks, kPackedBlock});
  const Tensor largest = sums.abs().amax(2, /*keepdim=*/true), is_zero = largest.lt(kPackedLeast),
               inverse = at::full_like(largest, kPackedMost).div(largest).masked_fill(is_zero, 0);
  const Tensor numbers = sums.mul(inverse).round().nan_to_num(0, 0, 0).to(at::kShort);
  const Tensor scales = largest.squeeze(2).div(kPackedMost).masked_fill(is_zero.squeeze(2), 0);
  const Tensor row = at::cat({numbers.flatten(1).view(at::kByte), scales.contiguous().view(at::kByte)}, 1);
  return at::constant_pad_nd(row, {0, bytes_of_packed_row(n) - row.size(1)});
}

Tensor sum_packed_rows(const Tensor& packed, const Tensor& row_of_assignment, const Tensor& weights,
                       const Tensor& added, int64_t n, at::ScalarType dtype) {
  const int64_t blocks = (n + kPackedBlock - 1) / kPackedBlock, numbers = blocks * kPackedBlock * 2;
  const Tensor values = packed.narrow(1, 0, numbers).contiguous().view(at::kShort).to(at::kFloat),
               scales = packed.narrow(1, numbers, blocks * 4).contiguous().view(at::kFloat);
  const Tensor rows =
      values.view({-1, blocks, kPackedBlock}).mul(scales.unsqueeze(2)).flatten(1).narrow(1, 0, n);
  Tensor sums = sums_of_rows(rows, row_of_assignment, weights);
  if (added.defined()) sums.add_(added);
  return sums.to(dtype);
}

}  // namespace hyperion::kernels::plain
