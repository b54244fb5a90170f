// ParallelDims has the process groups whose ranks share the work of a batch with this rank. By default there
// are none, and every layer is replicated.
//
// A tensor parallel group of T ranks shares microbatches: each rank gets the full [batch, seq], where T
// divides seq, and between blocks has its part of every sequence, [batch, seq / T, dim]. The loss covers all
// tokens, on every rank.
//
// The gradient of a replicated parameter (Parameter::split is unset: norms, also of queries and keys, and the
// router's gate) covers only the tokens and heads of this rank: the caller must all-reduce it over the group.
// The gradient of a sharded parameter is complete for its shard, as is the gradient of experts that ep_group
// shards.
#pragma once

#include <vector>

#include "base/exchange.h"

namespace hyperion::models {

// The context parallel group of attention, see ParallelDims.
struct ContextGroup {
  Exchange* group = nullptr;  // null: no context parallelism
  bool ring = false;
};

// The ranks of an expert parallel group that spans several nodes, see ParallelDims. Both groups are null if
// tokens travel once per expert.
struct NodeGroups {
  Exchange* nodes = nullptr;    // the ranks with this rank's index in each node
  Exchange* in_node = nullptr;  // the ranks of this rank's node
};

// Groups outlive the model. A null group means one rank.
struct ParallelDims {
  // Tensor parallelism (TP): shards the matrices (Parameter::split) and, between matrices, the sequence.
  Exchange* tp_group = nullptr;
  // True if each TP rank computes logits and loss of its shard of the vocabulary; otherwise logits are
  // all-gathered.
  bool loss_parallel = true;
  // Async TP, for GPUs: blocks exchange one chunk per rank while the product of another chunk runs, instead
  // of all rows before or after one product (models/layers/chunked_exchange.h). The bytes are the same.
  // Results differ only by the order of sums, inside products and over ranks.
  bool chunked = false;

  // Context parallelism (CP): shards the sequence (models/args/sequence_parts.h). TP ranks then share a CP
  // rank's parts as if they were full sequences.
  Exchange* cp_group = nullptr;
  // True if keys and values travel around a ring of the CP ranks, one hop during each step of attention,
  // instead of being all-gathered. Attention with documents always all-gathers.
  bool ring = false;

  // Expert parallelism (EP): its ranks have different tokens, and each holds the same number of experts.
  Exchange* ep_group = nullptr;
  // Expert tensor parallelism (ETP), with both EP and TP: TP ranks also shard each expert, whose input rows
  // are gathered on all of them. Otherwise an expert is replicated over TP, and each TP rank sends the tokens
  // of its part of the sequences. Without EP, TP always shards each expert.
  bool shards_experts = false;
  // The number of slices of a microbatch's tokens, each of which has all-to-alls of its own.
  int64_t expert_slices = 1;
  // Tokens travel once to each node that holds some of their experts. Rank i of node n is rank n * ranks of a
  // node + i of ep_group.
  NodeGroups ep_nodes{};

  // The groups over which ranks, besides those of tp_group, have different tokens of one batch: sums over the
  // global batch are all-reduced over one after the other.
  std::vector<Exchange*> batch_groups{};

  // These return a group of several ranks, or null.
  Exchange* active_tp_group() const {
    return tp_group != nullptr && tp_group->size() > 1 ? tp_group : nullptr;
  }
  ContextGroup active_cp_group() const {
    return {cp_group != nullptr && cp_group->size() > 1 ? cp_group : nullptr, ring};
  }
  Exchange* active_ep_group() const {
    return ep_group != nullptr && ep_group->size() > 1 ? ep_group : nullptr;
  }
  // The ranks between which rows travel to their experts.
  Exchange* expert_rows_group() const {
    return ep_nodes.in_node != nullptr ? ep_nodes.in_node : active_ep_group();
  }
  // The TP ranks that shard each expert; null: none do.
  Exchange* etp_group() const {
    return active_ep_group() == nullptr || shards_experts ? active_tp_group() : nullptr;
  }
};

}  // namespace hyperion::models
