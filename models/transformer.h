// The decoder of llama3, qwen3, deepseek_v3 and llama4 as a sequence of units: the embedding, each block, and
// the head with its loss. The trainer runs the units forward and backward itself; a unit reads its weights
// through Parameter::weight and does not know which ranks shard them, or when they are gathered and freed.
// What a run of a block does for activation checkpointing is in its BlockRun.
//
// With a tensor parallel group (models/layers/parallel_dims.h), [batch, seq, dim] of activations means this
// rank's part of every sequence, [batch, seq / T, dim]; tokens, labels and the context are those of whole
// sequences. Every rank of the group must call the same functions in the same order.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/parameter.h"
#include "models/layers/norm.h"
#include "models/layers/token_embedding.h"
#include "models/loss_head.h"
#include "models/parts/block_parts.h"
#include "models/parts/experts/moe.h"

namespace hyperion::models {

// Rotation frequencies of rotary position embeddings (RoFormer, arXiv 2104.09864), f_j =
// theta^(-2j/head_dim): fp32 [head_dim/2]. With rope_scaling (Llama 3.1: factor 8, low 1, high 4, original
// length 8192), wavelengths above length/low are stretched by the factor, those below length/high are kept,
// and those between are blended linearly in length/wavelength. With rope_yarn, sequences longer than the
// original length have YaRN's.
at::Tensor rope_frequencies(const ModelArgs& args, int64_t seq_len = 0);

class TransformerBlock {
 public:
  TransformerBlock(const ModelArgs& args, int64_t layer, const ParallelDims& dims = {});
  // x [batch, seq, dim] -> [batch, seq, dim]
  at::Tensor forward(const at::Tensor& x, const SequenceContext& context, const BlockRun& run = {}) const;
  std::vector<ParameterPtr> parameters() const;
  // In the order in which forward runs them.
  std::vector<Linear*> linears();
  ExpertBalancePtr balance() const { return feed_forward_->balance(); }  // null: no experts
  Experts* experts() { return feed_forward_->experts(); }                // null: none

 private:
  std::unique_ptr<AttentionPart> attention_;
  std::unique_ptr<FeedForwardPart> feed_forward_;
  Norm attention_norm_, ffn_norm_;
  int64_t layer_;
};

// A group of parameters that are gathered, used and released together.
struct UnitParameters {
  std::string name;  // "tok_embeddings", "layers.0", ..., "norm,output"
  std::vector<ParameterPtr> parameters;
};

class Transformer {
 public:
  // loss_chunk_bytes: see LossHead. Parameters are divided over the ranks of `dims`.
  explicit Transformer(const ModelArgs& args, int64_t loss_chunk_bytes = 0, const ParallelDims& dims = {});

  const ModelArgs& args() const { return args_; }
  const TokenEmbedding& embedding() const { return embedding_; }
  const std::vector<TransformerBlock>& blocks() const { return blocks_; }
  const LossHead& head() const { return head_; }
  // Embedding, blocks in order, head: blocks().size() + 2 entries. A tied table is in the first and the last.
  const std::vector<UnitParameters>& units() const { return units_; }
  // Every parameter once, in unit order.
  std::vector<ParameterPtr> parameters() const;

  // Of the blocks that have experts, in order. They are state, but no parameters.
  std::vector<ExpertBalancePtr> balances() const;
  // Gives each of them memory on that device, with zeros; a model is made with it on the CPU.
  void allocate_balances(at::Device device) const;

  // Every linear layer, in the order of forward, with the name of its module, "layers.0.attention.wq" ...
  // "output" (a tied head too): to choose how each multiplies.
  std::vector<std::pair<std::string, Linear*>> linears();
  // The same of experts, "layers.1.moe.experts", in the order of the blocks.
  std::vector<std::pair<std::string, Experts*>> experts();

  // RoPE angles and plain causal attention for sequences of seq_len tokens.
  SequenceContext context(int64_t seq_len, at::Device device) const;

 private:
  ModelArgs args_;
  ParameterPtr table_, output_;  // output_ is table_ when the head is tied
  Norm norm_;
  TokenEmbedding embedding_;
  std::vector<TransformerBlock> blocks_;
  LossHead head_;
  std::vector<UnitParameters> units_;
};

}  // namespace hyperion::models
