// Attention over a sequence that context parallel ranks shard: each rank has the queries of its parts of the
// sequence and all-gathers the keys and values of all ranks.
//
// With two parts per rank (SequenceSplit::head_tail) the first parts of all ranks are the first half of the
// sequence, which is all that their queries see: the keys of the second parts are in flight during this
// attention. Backward runs the second parts first, and the gradients of their keys are in flight during the
// first parts. Gathered keys are not kept: backward gathers them again. The gradients of keys and values, of
// which each rank has those of its queries, are reduce-scattered in fp32 in rank order.
//
// With k = 2 * batch * seq * kv_heads * head_dim elements (full sequences, this rank's heads) and C ranks, a
// rank receives k (C - 1) / C elements in forward, as many in backward, and as many fp32 gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/exchange.h"
#include "models/layers/block_run.h"
#include "models/layers/microbatch.h"
#include "models/layers/parallel_dims.h"

namespace hyperion::models {

// LayerAttention is what one layer's attention has besides queries, keys and the mask that all layers share.
struct LayerAttention {
  int64_t window = 0;  // kernels::AttentionMask::window
  at::Tensor sinks{};  // [heads] of this rank (models/kernels/attention/sinks.h); undefined without
};

// Returns the width in which values of `v_head_dim` are best given to attention_over_ranks()
// (kernels::value_width()). q [batch, seq, heads, head_dim].
int64_t value_width_over_ranks(const at::Tensor& q, int64_t v_head_dim, const SequenceContext& context,
                               const ContextGroup& cp);

// Computes the attention of q [batch, heads, seq, head_dim] and k, v [batch, kv_heads, seq, head_dim], this
// rank's tokens -> the shape of q; values and the result may have a smaller v_head_dim. It calls
// ops::attention() without a group, ring_attention() with a ring whose steps serve the mask and the window.
// Gathered keys are those of the complete sequence, whatever the window is. All ranks of the
// group must call it in the same order, in backward too. A checkpoint of the run saves the output, so that
// the recomputation communicates nothing.
at::Tensor attention_over_ranks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const SequenceContext& context, const ContextGroup& cp, const BlockRun& run,
                                const LayerAttention& layer = {});

}  // namespace hyperion::models
