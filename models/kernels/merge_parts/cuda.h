// Calls merge_parts/cuda.cuh with tensors.
#pragma once

#include "models/kernels/common/tensors.h"
#include "models/kernels/merge_parts/merge_parts.h"
#include "models/kernels/merge_parts/task.h"

namespace hyperion::kernels::cuda {

template <typename Launch>
void merge_parts(const Launch& launch, const Tensor& output, const Tensor& lse, const Tensor& given_part,
                 const Tensor& part_lse) {
  const char* const what = "merge_parts";
  TORCH_CHECK(output.dim() == 4 && given_part.sizes() == output.sizes() &&
                  lse.sizes() == output.sizes().slice(0, 3) && part_lse.sizes() == lse.sizes() &&
                  (output.size(3) == 1 || output.stride(3) == 1),
              what, ": ", output.sizes(), " and ", lse.sizes(), " with a part of ", given_part.sizes(),
              " and ", part_lse.sizes());
  TORCH_CHECK(lse.scalar_type() == at::kFloat && part_lse.scalar_type() == at::kFloat &&
                  (output.scalar_type() == given_part.scalar_type() || output.scalar_type() == at::kFloat),
              what, ": ", output.scalar_type(), " and ", lse.scalar_type(), " with a part of ",
              given_part.scalar_type(), " and ", part_lse.scalar_type());
  const Tensor part = given_part.stride(3) == 1 ? given_part : given_part.contiguous();
  const auto of_heads = [](const Tensor& t) {  // [batch, heads, queries, ...]
    return HeadsLayout{
        .data = t.data_ptr(), .sequence = t.stride(0), .position = t.stride(2), .head = t.stride(1)};
  };
  const MergePartsTask task{.output = of_heads(output),
                            .part = of_heads(part),
                            .lse = of_heads(lse),
                            .part_lse = of_heads(part_lse),
                            .wide = output.scalar_type() == at::kFloat,
                            .rows = lse.numel(),
                            .queries = output.size(2),
                            .heads = static_cast<int>(output.size(1)),
                            .head_dim = static_cast<int>(output.size(3))};
  if (output.numel() > 0) launch(task, element_of(part, what));
}

}  // namespace hyperion::kernels::cuda
