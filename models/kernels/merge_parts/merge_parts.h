// Merges the attention of the same queries to two parts of the keys.
#pragma once

#include "models/kernels/kernel.h"

namespace hyperion::kernels {

// output [batch, heads, queries, head_dim] and lse [batch, heads, queries] are of attention to the keys so
// far and become those of attention to the part's keys too: of them part_output and part_lse are.
// Log-sum-exps are fp32 (fp64 for fp64). output has part_output's dtype or that of lse. All may be views. In
// a row without a key the log-sum-exp is -infinity and the output any finite number.
using MergeParts = void(const at::Tensor& output, const at::Tensor& lse, const at::Tensor& part_output,
                        const at::Tensor& part_lse);

namespace plain {
MergeParts merge_parts;
}  // namespace plain

}  // namespace hyperion::kernels
