// Ring attention over a sequence that context parallel ranks shard
// (parallelism.context_parallel_rotate_method = "alltoall").
//
// Each rank has the queries, keys and values of its part of the sequence. In each step its queries attend to
// the keys and values that it holds, while these travel to the next rank and those of the previous rank
// arrive. The outputs of the steps are merged by their log-sum-exp.
//
// In backward keys and values travel around the ring again. The gradients of a rank's keys and values follow
// them, one hop per step, summed in fp32: they start at the next rank and reach their own rank last, which
// adds the gradients of its queries. So a rank holds the keys and values of at most two ranks, besides its
// own input.
//
// With k = 2 * batch * seq * kv_heads * head_dim elements (full sequences, this rank's heads) and C ranks, a
// rank sends k (C - 1) / C elements in forward, as many in backward, and as many fp32 gradients.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "base/exchange.h"
#include "models/kernels/attention/attention.h"

namespace hyperion::models {

class SelectiveCheckpoint;

// A selection of a rank's tokens.
enum class RingRows { kAll, kFirstHalf, kSecondHalf };

// One step of the ring: this rank's queries attend to the keys of rank `source`.
struct RingStep {
  int source = 0;
  bool attends = true;  // false: all of this rank's queries come before these keys
  RingRows queries = RingRows::kAll, keys = RingRows::kAll;
  kernels::MaskKind mask = kernels::MaskKind::kAllKeys;  // only a rank's own keys need a causal one
};

// Returns whether a ring serves this mask of the complete sequence: no documents and no window.
constexpr bool serves_ring(kernels::MaskKind mask, int64_t window) {
  return mask == kernels::MaskKind::kCausal && window == 0;
}

// Returns the steps of a rank: its own keys first, then those of ranks rank - 1, rank - 2, ... with
// wrap-around. head_tail: SequenceSplit::head_tail; the two chunks of a rank are then the halves of its
// tokens.
std::vector<RingStep> ring_steps(int ranks, int rank, bool head_tail);

// Computes the attention of q [batch, heads, seq, head_dim] and k, v [batch, kv_heads, seq, head_dim], this
// rank's tokens -> the shape of q; values and the result may have a smaller v_head_dim. The mask is causal.
// All ranks of the group must call it in the same order, in backward too. `checkpoint`, which may be null,
// saves the output, so that the recomputation communicates nothing. sinks: see ops::attention().
at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Exchange& cp_group,
                          bool head_tail, SelectiveCheckpoint* checkpoint, const at::Tensor& sinks = {});

}  // namespace hyperion::models
