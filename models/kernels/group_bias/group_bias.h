// The biases of grouped products (models/kernels/matmul/grouped.h): each group of rows has a bias of its own.
#pragma once

#include "models/kernels/kernel.h"

namespace hyperion::kernels {

// Adds bias[group of row] to each row, in place. rows [rows, n] may be columns of a wider tensor; bias
// [groups, n] has their dtype; ends: int32 [groups] on the device, where each group ends. The sum is rounded
// once. Rows behind the last group become undefined.
using AddGroupBias = void(const at::Tensor& rows, const at::Tensor& bias, const at::Tensor& ends);
// Returns the gradient of the bias: the sums of each group's rows of `grad` [rows, n] -> [groups, n], in
// opmath_dtype(), rounded once to the dtype of `grad`; zeros for a group without rows. It does not read rows
// behind the last group. The order of a sum depends on the numbers of rows and columns only.
using SumGroups = at::Tensor(const at::Tensor& grad, const at::Tensor& ends);

namespace plain {
AddGroupBias add_group_bias;
SumGroups sum_groups;
}  // namespace plain

namespace cpu {
AddGroupBias add_group_bias;
SumGroups sum_groups;
}  // namespace cpu

}  // namespace hyperion::kernels
