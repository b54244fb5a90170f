// Summed cross-entropy of rows of logits, and its gradient written over them: no fp32 copy of the logits
// exists.
#pragma once

#include <ATen/core/Tensor.h>

namespace hyperion::kernels {

inline constexpr int64_t kIgnoredLabel = -100;

// logits [rows, vocab]; labels int64 [rows], kIgnoredLabel = not counted. Returns the sum as a 0-dim fp32
// tensor (fp64 for fp64). With `scale` (0-dim), logits become scale * (softmax - onehot), zero in ignored
// rows.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor* scale);

namespace plain {
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor* scale);
}

}  // namespace hyperion::kernels
