#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/logaddexp.h>

#include "models/kernels/common/dtype.h"
#include "models/kernels/merge_parts/merge_parts.h"

namespace hyperion::kernels::plain {

void merge_parts(const at::Tensor& output, const at::Tensor& lse, const at::Tensor& part_output,
                 const at::Tensor& part_lse) {
  const double lowest = lse.scalar_type() == at::kDouble ? std::numeric_limits<double>::lowest()
                                                         : std::numeric_limits<float>::lowest();
  // The part's share of the exponentials. Where neither has a key, the difference must be no NaN.
  const at::Tensor share = (part_lse - lse.clamp_min(lowest)).sigmoid_().unsqueeze(-1);
  const at::Tensor wide = output.to(opmath_dtype(output));  // `output` itself where that is wide
  wide.lerp_(part_output.to(wide.scalar_type()), share);
  if (!wide.is_same(output)) output.copy_(wide);
  at::Tensor sum = lse;
  at::logaddexp_out(sum, lse, part_lse);
}

}  // namespace hyperion::kernels::plain
