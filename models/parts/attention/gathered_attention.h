// Attention of a sequence that context parallel ranks share: each has the queries of its parts, and the keys
// and values of all ranks are gathered for them.
//
// With two parts per rank (SequenceSplit::head_tail) the first parts of all ranks make the first half of the
// sequence, and the queries of a first part need no more than that: the second parts travel under their
// attention. The backward takes the second part first, and the gradients of second parts travel under the
// first part's. Nothing gathered is kept: the backward gathers once more. Gradients of keys and values, which
// each rank has of its queries, are added up in fp32 in the order of the ranks.
//
// With k = 2 * batch * seq * kv_heads * head_dim elements, of complete sequences and of this rank's heads, a
// rank receives k (C - 1) / C elements in forward and the same in backward, and as many sums in fp32.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/exchange.h"
#include "models/layers/block_run.h"
#include "models/layers/microbatch.h"
#include "models/layers/parallel_dims.h"

namespace hyperion::models {

// q [batch, heads, seq, head_dim] and k, v [batch, kv_heads, seq, head_dim] of this rank's tokens -> as q.
// Every rank of the group calls this in the same order, forward and backward; of one rank: the sequences are
// complete here (ops::attention). A checkpoint of the run saves the result, and the second run exchanges
// nothing. In a ring without documents: ring_attention() (models/parts/attention/ring_attention.h).
at::Tensor attention_over_ranks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const SequenceContext& context, const ContextGroup& group,
                                const BlockRun& run);

}  // namespace hyperion::models
