#include "models/kernels/attention/merge.h"

#include "models/kernels/kernels.h"

namespace hyperion::kernels {

void merge_attention(const at::Tensor& output, const at::Tensor& lse, const AttentionResult& part) {
  table().merge_parts(output, lse, part.output, part.lse);
}

}  // namespace hyperion::kernels
