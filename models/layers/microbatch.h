// What a model is run on.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "models/args/sequence_parts.h"
#include "models/kernels/attention/attention.h"

namespace hyperion::models {

// Queries of a context parallel rank, which attend to the keys of the sequence up to the last of them.
struct SequencePart {
  SequenceRange range;
  kernels::Documents documents{};  // of these queries, and keys [0, range.end)
};

// What every block of one microbatch shares.
struct SequenceContext {
  at::Tensor cos, sin;  // RoPE angles, fp32 [seq, pairs] or [batch, seq, pairs] of each head
  kernels::Documents documents;
  double attention_factor = 1;  // of the scores, in addition to 1/sqrt(head_dim)
  // With context parallelism: which tokens of the sequences this rank has, in the order of its tensors.
  // `documents` has no use then, and the angles are those of these tokens.
  std::vector<SequencePart> parts{};
};

// The context of packed documents from that of plain sequences of the same length. positions: int32 or int64
// [batch, seq] on the context's device, counted inside each document, which are `documents`.
SequenceContext inside_documents(const SequenceContext& plain, const at::Tensor& positions,
                                 const kernels::Documents& documents);

// The columns of a rank's parts, one behind the other: of tokens, labels or positions [batch, seq], or along
// dimension 0 of angles [seq, pairs].
at::Tensor columns_of_parts(const at::Tensor& t, const std::vector<SequenceRange>& parts, int64_t dim = 1);

// The context of this rank's parts of sequences from that of complete ones. positions: int32 [batch, seq] on
// the CPU, of complete sequences, counted inside each document; undefined: a sequence is one document.
SequenceContext context_of_parts(const SequenceContext& plain, const std::vector<SequenceRange>& parts,
                                 const at::Tensor& positions);

// One microbatch on the compute device; with context parallelism this rank's tokens of it.
struct Microbatch {
  at::Tensor tokens;  // int64 [batch, seq]
  at::Tensor labels;  // int64 [batch, seq], -100 = ignored; undefined on a rank without the head
  SequenceContext context;
};

}  // namespace hyperion::models
