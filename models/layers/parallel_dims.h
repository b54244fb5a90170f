// The ranks that share the work of one batch with this one. Without any (the default) every layer is whole on
// this rank.
//
// With a tensor parallel group of T ranks each of them is given the same whole microbatch, [batch, seq] with
// seq a multiple of T, and has its part of every sequence, [batch, seq / T, dim], between blocks. Gradients
// of parameters that all T ranks have (Parameter::split is unset: norms, those of queries and keys, a gate of
// experts) are of this rank's tokens and heads alone: whoever runs the model adds them up over the group. All
// others are complete for this rank's part, and so are those of experts that the ranks of `expert` divide.
// The loss is that of all tokens on every rank.
#pragma once

#include "base/exchange.h"

namespace hyperion::models {

// `context` and `ring` of ParallelDims; ranks null: one rank.
struct ContextGroup {
  Exchange* ranks = nullptr;
  bool ring = false;
};

struct ParallelDims {
  // Tensor parallelism: its ranks divide every matrix (Parameter::split) and, between matrices, the sequence.
  // Outlives the model; null: one rank.
  Exchange* tensor = nullptr;
  // Whether each rank computes the logits and the loss of its own part of the vocabulary; else logits are
  // gathered.
  bool loss_parallel = true;
  // Whether what the blocks exchange travels in as many chunks as there are ranks, each under the product of
  // another chunk, instead of before or after one product (models/layers/chunked_exchange.h): for GPUs. The
  // bytes are the same; results differ by the order of sums inside products and over ranks alone.
  bool chunked = false;

  // Context parallelism: each of its ranks has its parts of every sequence (models/args/sequence_parts.h),
  // which tensor parallel ranks then share as if they were complete ones. Outlives the model; null: one rank.
  Exchange* context = nullptr;
  // Whether keys and values go round them, one hop under each step of attention, and not to all at once;
  // where documents are kept apart they do not.
  bool ring = false;

  // Expert parallelism: its ranks, which have other tokens, hold equally many of the experts each. Outlives
  // the model; null: every expert is here.
  Exchange* expert = nullptr;
  // Of expert and tensor parallelism together: whether tensor parallel ranks divide each expert too, of which
  // all of them have the rows (without expert parallelism they always do). Else an expert is complete on its
  // rank, and each rank sends the tokens of its part of the sequences.
  bool divides_experts = false;

  // `tensor` where it has more ranks than this one, else null.
  Exchange* tensor_group() const { return tensor != nullptr && tensor->size() > 1 ? tensor : nullptr; }
  ContextGroup context_group() const {
    return {context != nullptr && context->size() > 1 ? context : nullptr, ring};
  }
  Exchange* expert_group() const { return expert != nullptr && expert->size() > 1 ? expert : nullptr; }
  // The ranks that divide each expert; null: none do.
  Exchange* expert_tensor_group() const {
    return expert_group() == nullptr || divides_experts ? tensor_group() : nullptr;
  }
};

}  // namespace hyperion::models
