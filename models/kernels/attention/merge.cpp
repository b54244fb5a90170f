#include "models/kernels/attention/merge.h"

#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/logaddexp.h>

namespace hyperion::kernels {

void merge_attention(const at::Tensor& output, const at::Tensor& lse, const AttentionResult& part) {
  const double lowest = lse.scalar_type() == at::kDouble ? std::numeric_limits<double>::lowest()
                                                         : std::numeric_limits<float>::lowest();
  // The part's share of the exponentials. Where neither has a key, the difference must be no NaN.
  const at::Tensor share = (part.lse - lse.clamp_min(lowest)).sigmoid_();
  output.lerp_(part.output.to(output.scalar_type()), share.unsqueeze(-1));
  at::Tensor sum = lse;
  at::logaddexp_out(sum, lse, part.lse);
}

}  // namespace hyperion::kernels
