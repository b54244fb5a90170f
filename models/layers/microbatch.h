// The input of a model: tokens, labels and the context of their sequences.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "models/args/sequence_parts.h"
#include "models/kernels/attention/attention.h"

namespace hyperion::models {

// A range of the sequence that a context parallel rank has. Its queries attend to keys [0, range.end).
struct SequencePart {
  SequenceRange range;
  kernels::AttentionMask mask{};  // of these queries and keys
};

// SequenceContext has the inputs that all blocks of a microbatch share.
struct SequenceContext {
  at::Tensor cos, sin;  // RoPE angles, fp32 [seq, pairs] or [batch, seq, pairs]
  kernels::AttentionMask mask;
  double attention_factor = 1;  // scales attention scores, in addition to 1/sqrt(head_dim)
  // The parts of the sequences that a context parallel rank has, in the order of its tokens; else empty. With
  // parts the angles belong to these tokens, and `mask` is unused.
  std::vector<SequencePart> parts{};
};

// Returns the context of packed documents, made from the context of plain sequences of the same length.
// positions: int32 or int64 [batch, seq] on the context's device; each document of `mask` starts at 0.
SequenceContext inside_documents(const SequenceContext& plain, const at::Tensor& positions,
                                 const kernels::AttentionMask& mask);

// Returns the columns of `parts`, concatenated: tokens, labels or positions [batch, seq], or RoPE angles
// [seq, pairs] with dim = 0.
at::Tensor columns_of_parts(const at::Tensor& t, const std::vector<SequenceRange>& parts, int64_t dim = 1);

// Returns the context of a context parallel rank, made from the context of the full sequences. positions:
// int32 [batch, seq] of the full sequences on the CPU, where each document starts at 0; undefined: a sequence
// is one document.
SequenceContext context_of_parts(const SequenceContext& plain, const std::vector<SequenceRange>& parts,
                                 const at::Tensor& positions);

// A microbatch on the compute device. With context parallelism it has the tokens of this rank.
struct Microbatch {
  at::Tensor tokens;  // int64 [batch, seq]
  at::Tensor labels;  // int64 [batch, seq], -100 = ignored; undefined on a rank without the head
  SequenceContext context;
};

}  // namespace hyperion::models
