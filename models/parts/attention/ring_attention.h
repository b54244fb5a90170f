// Attention of a sequence that context parallel ranks share, whose keys and values go round the ranks
// (parallelism.context_parallel_rotate_method = "alltoall").
//
// Each rank has the queries, keys and values of its part of the sequence. In every step it passes keys and
// values on to the next rank and receives those of the rank before, under the attention of its queries to the
// ones that it has, and merges what each step gives by its log-sum-exp. In backward they go round once more,
// and the gradients of a rank's keys and values behind them, one hop a step, added up in fp32: they begin
// with the first rank that is not their own and reach their own rank after all others, where those of its
// queries are added. So a rank holds the keys and values of two ranks at most, besides its own as they came
// in.
//
// With k = 2 * batch * seq * kv_heads * head_dim elements, of complete sequences and of this rank's heads, a
// rank sends k (C - 1) / C elements in forward and the same in backward, and as many sums in fp32.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "base/exchange.h"
#include "models/kernels/attention/attention.h"

namespace hyperion::models {

class SelectiveCheckpoint;

// Tokens of a rank's part of the sequence.
enum class RingRows { kAll, kFirstHalf, kSecondHalf };

// What a rank's queries do with the keys of one rank.
struct RingStep {
  int source = 0;       // whose keys
  bool attends = true;  // else all of its queries come before these keys
  RingRows queries = RingRows::kAll, keys = RingRows::kAll;
  kernels::Causality causality = kernels::Causality::kNone;  // every query sees every key, but the own ones
};

// The steps of a rank, in which the keys of the other ranks come from the nearest before it to the nearest
// after it. head_tail: SequenceSplit::head_tail; a rank's chunks are then the halves of its part.
std::vector<RingStep> ring_steps(int ranks, int rank, bool head_tail);

// q [batch, heads, seq, head_dim] and k, v [batch, kv_heads, seq, head_dim] of this rank's tokens -> as q.
// All of `ranks` call it in the same order, forward and backward. `checkpoint` saves the result, and the
// second run exchanges nothing; null: there is none. Documents are not kept apart.
at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Exchange& ranks,
                          bool head_tail, SelectiveCheckpoint* checkpoint);

}  // namespace hyperion::models
