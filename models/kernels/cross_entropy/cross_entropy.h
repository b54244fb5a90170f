// The summed cross-entropy of rows of logits, and its gradient, which overwrites them: no fp32 copy of the
// logits exists.
#pragma once

#include "models/kernels/kernel.h"

namespace hyperion::kernels {

inline constexpr int64_t kIgnoredLabel = -100;

// Returns the sum for logits [rows, vocab] and labels int64 [rows] (kIgnoredLabel = not counted), as a 0-dim
// fp32 tensor (fp64 for fp64). If `scale` (0-dim) is not null, the logits become scale * (softmax - onehot),
// zero in ignored rows.
//
// z_loss adds z_loss * (log-sum-exp of the row's logits)^2 to each row's loss (PaLM, arXiv 2204.02311,
// section 5). Unless it is 0, the result is [2], the sum of cross-entropies and the sum of (log-sum-exp)^2,
// and the logits become scale * ((1 + 2 * z_loss * log-sum-exp) * softmax - onehot).
using CrossEntropy = at::Tensor(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor* scale,
                                double z_loss);

// Returns the sum of the rows' losses, 0-dim in their dtype. A CPU sums them one after the other, because a
// sum over threads would have an order that depends on their number.
at::Tensor sum_of_losses(const at::Tensor& losses);

// A shard of the vocabulary: columns [first, first + logits.size(1)) of the logits of `vocab` entries.
struct VocabPart {
  int64_t first = 0, vocab = 0;
};

// Returns the statistics of a shard that ranks exchange, [rows, 3] in fp32 (fp64 for fp64): the largest
// logit, the sum of exp(logit - largest), and the label's logit, which is 0 if the label is ignored or in
// another shard. A shard without columns has (-infinity, 0, 0).
using VocabStatistics = at::Tensor(const at::Tensor& logits, const at::Tensor& labels, const VocabPart& part);

// Overwrites the shard's logits with scale * (softmax - onehot), zero in ignored rows, or with the gradient
// that z_loss adds to (CrossEntropy). log_sum_exp: [rows], over the full vocabulary, in the dtype of the
// statistics. scale: 0-dim.
using VocabGradient = void(const at::Tensor& logits, const at::Tensor& labels, const VocabPart& part,
                           const at::Tensor& log_sum_exp, const at::Tensor& scale, double z_loss);

// Throws Error(kBug) if the label is outside the vocabulary.
void require_label(int64_t label, int64_t vocab);

inline void append(Values& values, const VocabPart& x) {
  append(values, x.first);
  append(values, x.vocab);
}

namespace plain {
CrossEntropy cross_entropy;
VocabStatistics vocab_statistics;
VocabGradient vocab_gradient;
}  // namespace plain

namespace cpu {
CrossEntropy cross_entropy;
VocabStatistics vocab_statistics;
VocabGradient vocab_gradient;
}  // namespace cpu

}  // namespace hyperion::kernels
