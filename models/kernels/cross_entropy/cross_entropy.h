// Summed cross-entropy of rows of logits, and its gradient written over them: no fp32 copy of the logits
// exists.
#pragma once

#include "models/kernels/kernel.h"

namespace hyperion::kernels {

inline constexpr int64_t kIgnoredLabel = -100;

// logits [rows, vocab]; labels int64 [rows], kIgnoredLabel = not counted. Returns the sum as a 0-dim fp32
// tensor (fp64 for fp64). With `scale` (0-dim), logits become scale * (softmax - onehot), zero in ignored
// rows.
using CrossEntropy = at::Tensor(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor* scale);

// The sum of rows' losses, 0-dim in their dtype. On a CPU one after the other: a sum over threads would have
// an order that depends on them.
at::Tensor sum_of_losses(const at::Tensor& losses);

// Columns [first, first + logits.size(1)) of the logits of a vocabulary of `whole` entries.
struct VocabPart {
  int64_t first = 0, whole = 0;
};

// What ranks tell each other of their parts of each row: [rows, 3] in fp32 (fp64 for fp64): the largest
// logit, the sum of exp(logit - largest), and the label's logit, 0 where the label is elsewhere or ignored. A
// part without columns has (-infinity, 0, 0).
using VocabStatistics = at::Tensor(const at::Tensor& logits, const at::Tensor& labels, const VocabPart& part);

// Writes this part's scale * (softmax - onehot) over the logits, zero in ignored rows. log_sum_exp: of whole
// rows, [rows], in the dtype of the statistics; scale: 0-dim.
using VocabGradient = void(const at::Tensor& logits, const at::Tensor& labels, const VocabPart& part,
                           const at::Tensor& log_sum_exp, const at::Tensor& scale);

// Throws Error(kBug) where a label is none of a vocabulary's.
void require_label(int64_t label, int64_t vocab);

inline void append(Values& values, const VocabPart& x) {
  append(values, x.first);
  append(values, x.whole);
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
