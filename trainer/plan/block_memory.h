// The tensors of a block in the order in which its forward and backward allocate and free them, of which a
// replay of the allocator makes the memory that a step reserves. Pure.
#pragma once

#include <array>
#include <cstdint>

#include "models/description.h"
#include "parallel/mesh.h"
#include "trainer/config/job_config.h"
#include "trainer/plan/caching_allocator.h"

namespace hyperion::trainer {

// The unsharded gradients of a unit, by the products that make them. They live from the first wgrad that adds
// to them until they are reduced.
struct UnitGradients {
  enum Part : uint8_t {
    kAttentionIn,   // the products before attention
    kAttentionOut,  // wo
    kUp,            // w1 and w3 of the dense or shared feed-forward, and the router
    kDown,          // w2
    kExpertsUp,     // w1 and w3 of all experts
    kExpertsDown,
    kParts
  };
  std::array<CachingAllocator::Block, kParts> parts{};
};

class BlockMemory {
 public:
  // Tensors of one microbatch. "Gathered": over the tensor parallel ranks, which else have a part of the
  // tokens each.
  enum Name : uint8_t {
    kInput,           // of the block
    kNormed,          // the normed input
    kGatheredNormed,  // the same, gathered
    kProjected,       // queries, keys and values before RoPE; of latent attention the queries
    kLatents,         // of latent attention: what its first products make
    kNormedLatents,   // the same, normed
    kExpanded,        // of latent attention: keys and values of the heads
    kQueries,
    kKeys,
    kValues,
    kAttended,    // attention's result, which wo multiplies
    kStatistics,  // attention's log-sum-exp of each row
    kWoOutput,
    kResidual,          // the input plus wo's output
    kNormedResidual,    // the same, normed
    kGatheredResidual,  // the same, gathered
    kRouterScores,
    kReceivedTokens,   // tokens that the nodes of their experts have received (once_per_node)
    kExpertRows,       // rows that this rank's experts have received
    kW1Output,         // of w1 and w3; of w1 alone if checkpointing keeps one of both
    kW3Output,         // of w3 in that case
    kActivated,        // SwiGLU's result, which w2 multiplies
    kExpertUp,         // of w1 and w3 of experts
    kExpertActivated,  // SwiGLU's result for experts
    kReturnedRows,     // what experts have returned to this rank's tokens
    kRowOrder,         // where the rows of each token are
    kRecomputedOutput,
    kExpertGradient,  // gradients of outputs that a deferred wgrad reads: of experts' w2,
    kW2Gradient,      // of w2,
    kWoGradient,      // and of wo
    kNames
  };
  using Tensors = std::array<CachingAllocator::Block, kNames>;

  // `tokens`: of a rank's part of a microbatch's sequences.
  BlockMemory(const models::BlockDescription& block, const models::ModelArgs& args,
              const config::JobConfig& config, const parallel::Mesh& mesh, double tokens, double repeated);

  // Returns the block's output. `tensors` has its input and keeps what backward needs.
  CachingAllocator::Block forward(CachingAllocator& memory, Tensors& tensors,
                                  config::RecomputeMode mode) const;
  // Replaces the gradient of the output by that of the input. With `divided` it keeps what
  // weight_gradients() reads, and makes no gradients of weights.
  void backward(CachingAllocator& memory, Tensors& tensors, CachingAllocator::Block& gradient,
                UnitGradients& gradients, config::RecomputeMode mode, bool divided) const;
  void weight_gradients(CachingAllocator& memory, Tensors& tensors, UnitGradients& gradients) const;

  // Unsharded elements of the block's parameters in the order of the all-gather: {attention's inputs and
  // output, the feed-forward's, experts'}.
  const std::array<double, UnitGradients::kParts>& elements() const { return elements_; }

 private:
  class Run;

  std::array<double, UnitGradients::kParts> elements_{};
  double element_ = 2;
  // Bytes of a tensor of all tokens of a rank; 0: this block, or this mesh, has none.
  double stream_ = 0, gathered_ = 0;  // [tokens, dim], sharded and gathered by tensor parallel ranks
  double queries_ = 0, keys_ = 0, values_ = 0;  // after RoPE
  double attended_ = 0, statistics_ = 0;
  double projected_ = 0, latents_ = 0, expanded_ = 0;  // latent attention's
  double hidden_ = 0, up_ = 0;  // of the dense or shared feed-forward: one column layer's output, and all
  double received_ = 0;         // tokens of other nodes' ranks, if a token travels once to each node
  double sent_ = 0, rows_ = 0, rows_hidden_ = 0, scores_ = 0, order_ = 0;  // of experts
  double context_ = 1, repeated_ = 0;
  bool tensor_ = false, ring_ = false, latent_ = false, latent_queries_ = false, normed_heads_ = false,
       apart_ = false;
  bool float8_ = false;
};

// Returns the rows of logits that are computed at once, of `tokens` rows of `row_bytes` bytes on each of
// `tensor` tensor parallel ranks (models/loss_head.cpp).
double loss_chunk_rows(const config::JobConfig& config, double tokens, double row_bytes, double tensor,
                       bool on_gpu = true);

// The mode of activation checkpointing of a block: selective checkpointing of every Nth block is full or
// none.
config::RecomputeMode recompute_mode_of(const config::JobConfig& config, int64_t layer);

}  // namespace hyperion::trainer
