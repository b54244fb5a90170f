// Describes what a rank has of a step and of a block in one microbatch: rows, widths, products, tensors, and
// what activation checkpointing keeps. The work of a step (step_work.h, block_work.h) and its memory
// (block_memory.h) read the same description. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "models/description.h"
#include "parallel/mesh.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

struct StepShape {
  StepShape(const config::JobConfig& config, const parallel::Mesh& mesh);

  double sequences;     // of a microbatch
  double microbatches;  // of a step
  double tokens;        // of a microbatch on this rank, before tensor parallel ranks share them
  double tensor;        // tensor parallel ranks
  double own;           // tokens of this rank's part of the stream: sequence parallel
  double element;       // bytes of an element of activations and gathered weights
};

// A product with a dense weight.
struct Product {
  const models::ParameterShape* shape;
  double in = 0, out = 0;  // widths of this rank's part
  bool float8 = false;
};

struct BlockShape : StepShape {
  // The weights, by the products that make their gradients, in the order of the all-gather.
  enum Part : uint8_t {
    kAttentionIn,   // the products before attention, and the norms of heads and latents
    kAttentionOut,  // wo
    kUp,            // w1 and w3 of the dense or shared feed-forward, and the router
    kDown,          // w2
    kExpertsUp,     // w1 and w3 of all experts
    kExpertsDown,
    kParts
  };
  // Tensors of one microbatch. "Gathered": over the tensor parallel ranks, which else have a part of the
  // tokens each.
  enum Tensor : uint8_t {
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
    kExpertRows,       // rows that this rank's experts have received, or gathered from its tokens
    kW1Output,         // of w1 and w3; of w1 alone if checkpointing keeps one of both
    kW3Output,         // of w3 in that case
    kActivated,        // SwiGLU's result, which w2 multiplies
    kExpertUp,         // of w1 and w3 of experts
    kExpertActivated,  // SwiGLU's result for experts
    kReturnedRows,     // what experts have returned to this rank's tokens, if that is kept or exchanged
    kPackedSums,       // sums of a node's experts, as they travel between nodes (once_per_node)
    kRowOrder,         // where the rows of each token are
    kRecomputedOutput,
    kExpertGradient,  // gradients of outputs that a deferred wgrad reads: of experts' w2,
    kW2Gradient,      // of w2,
    kWoGradient,      // and of wo
    kTensors
  };

  BlockShape(const models::BlockDescription& block, const models::ModelArgs& args,
             const config::JobConfig& config, const parallel::Mesh& mesh);

  // Returns whether the mode keeps the tensor from forward to backward.
  bool keeps(config::RecomputeMode mode, Tensor name) const;
  // Returns how often backward computes the tensor again: 0 or 1.
  double repeats(config::RecomputeMode mode, Tensor name) const {
    return mode != config::RecomputeMode::kNone && !keeps(mode, name) ? 1 : 0;
  }
  // Returns how often a recomputation computes the experts' results again, for the gradient of the weights
  // that they are multiplied by.
  double repeats_of_results(config::RecomputeMode mode) const {
    return weighs_results && bytes[kReturnedRows] > 0 ? repeats(mode, kReturnedRows) : 0;
  }
  double gradient_bytes(Part part) const {  // unsharded; those of experts are in the compute dtype
    return elements[part] * (part >= kExpertsUp ? element : sizeof(float));
  }
  bool casts_expert_rows() const;  // products of experts run in FP8
  // Returns whether the hidden rows of experts are weighed for the gradient of the weights, which then reads
  // no results.
  bool weighs_hidden_rows() const { return weighs_results && bytes[kReturnedRows] == 0; }
  bool latent() const { return args.latent.is_present(); }
  bool normed_heads() const { return args.attention.qk_norm && !latent(); }

  const models::BlockDescription& block;
  const models::ModelArgs& args;
  const config::JobConfig& config;

  bool shards_experts;   // over expert parallel ranks
  double context;        // context parallel ranks
  double expert_ranks;   // ranks that shard the experts
  double expert_nodes;   // nodes of them, if a token travels once to each
  double expert_tensor;  // ranks that shard each expert
  bool weighs_results;   // results of experts are multiplied by their tokens' weights, not the tokens
  bool ring;             // keys travel in a ring

  // Widths of this rank's part.
  double dim, heads, queries, keys, values, attended;
  std::vector<Product> attention;      // the last is wo
  std::vector<Product> columns, rows;  // of the dense or shared feed-forward: w1 and w3, and w2
  double chosen = 0, expert_hidden = 0;

  std::array<double, kParts> elements{};  // unsharded, of the block's parameters
  std::array<double, kTensors> bytes{};   // 0: this block, or this mesh, has none
  double up = 0;                          // bytes of the outputs of w1 and w3
  double repeated = 0;  // bytes of keys and values, and of their gradients, for GPU kernels without GQA
};

// Returns the mean number of nodes, of `nodes`, that hold experts of a token.
double nodes_of_token(const models::ModelArgs& args, double nodes);

// Returns whether a weight of these global dimensions is multiplied in FP8.
bool multiplies_in_float8(const models::ParameterShape& shape, const config::JobConfig& config,
                          std::string_view module);

// Returns the rows of logits that are computed at once, of `tokens` rows of `row_bytes` bytes on each of
// `tensor` tensor parallel ranks (models/loss_head.cpp).
double loss_chunk_rows(const config::JobConfig& config, double tokens, double row_bytes, double tensor,
                       bool on_gpu = true);

// The mode of activation checkpointing of a block: selective checkpointing of every Nth block is full or
// none.
config::RecomputeMode recompute_mode_of(const config::JobConfig& config, int64_t layer);

}  // namespace hyperion::trainer
