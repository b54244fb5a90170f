#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>

#include "models/kernels/common/dtype.h"
#include "models/kernels/group_bias/group_bias.h"

namespace hyperion::kernels::plain {
namespace {

using at::Tensor;

// Returns the group of each row, int64 [rows]; the number of groups for rows behind the last.
Tensor group_of_rows(const Tensor& rows, const Tensor& ends) {
  return at::bucketize(at::arange(rows.size(0), ends.options()), ends, /*out_int32=*/false, /*right=*/true);
}

}  // namespace

void add_group_bias(const Tensor& rows, const Tensor& bias, const Tensor& ends) {
  rows.add_(bias.index_select(0, group_of_rows(rows, ends).clamp_max_(bias.size(0) - 1)));
}

// Multiplies by the matrix that says which row is of which group, so that only the device knows the groups.
Tensor sum_groups(const Tensor& grad, const Tensor& ends) {
  const int64_t groups = ends.size(0);
  const Tensor group = group_of_rows(grad, ends);
  const Tensor wide =
      grad.to(opmath_dtype(grad)).masked_fill(group.ge(groups).unsqueeze(1), 0);  // NaN times 0 is NaN
  const Tensor belongs = at::arange(groups, group.options()).unsqueeze(1).eq(group).to(wide.scalar_type());
  return belongs.matmul(wide).to(grad.scalar_type());
}

}  // namespace hyperion::kernels::plain
