// Transformer is the decoder of llama3, qwen2, qwen3, deepseek_v3, llama4, mistral and gpt_oss: a sequence of
// units, namely the embedding, each block, and the head with its loss. The trainer runs the units forward and
// backward itself. A unit reads its weights through Parameter::weight; it does not know which ranks shard
// them, nor when they are all-gathered and freed. BlockRun tells a block what to do for activation
// checkpointing.
//
// With a tensor parallel group of T ranks (models/layers/parallel_dims.h) an activation [batch, seq, dim] is
// sharded over the sequence: this rank has [batch, seq / T, dim]. Tokens, labels and the context are
// replicated. All ranks of the group must call the same functions in the same order.
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

// Returns the frequencies of rotary position embeddings (RoFormer, arXiv 2104.09864), f_j =
// theta^(-2j/head_dim): fp32 [head_dim/2].
// rope_scaling (Llama 3.1: factor 8, low 1, high 4, original length 8192) stretches wavelengths above
// length/low by the factor, keeps wavelengths below length/high, and blends linearly in length/wavelength
// between the two. rope_yarn applies YaRN (scales_by_yarn()).
at::Tensor rope_frequencies(const ModelArgs& args, int64_t seq_len = 0);

class TransformerBlock {
 public:
  TransformerBlock(const ModelArgs& args, int64_t layer, const ParallelDims& dims = {});
  // x [batch, seq, dim] -> [batch, seq, dim]
  at::Tensor forward(const at::Tensor& x, const SequenceContext& context, const BlockRun& run = {}) const;
  std::vector<ParameterPtr> parameters() const;
  std::vector<Linear*> linears();                                        // in forward order
  ExpertBalancePtr balance() const { return feed_forward_->balance(); }  // null without experts
  Experts* experts() { return feed_forward_->experts(); }                // null without experts

 private:
  std::unique_ptr<AttentionPart> attention_;
  std::unique_ptr<FeedForwardPart> feed_forward_;
  Norm attention_norm_, ffn_norm_;
  int64_t layer_;
};

// The parameters of a unit, which are all-gathered, used and freed together.
struct UnitParameters {
  std::string name;  // "tok_embeddings", "layers.0", ..., "norm,output"
  std::vector<ParameterPtr> parameters;
};

class Transformer {
 public:
  // `dims` shards the parameters. loss_chunk_bytes, z_loss: see LossHead.
  explicit Transformer(const ModelArgs& args, int64_t loss_chunk_bytes = 0, const ParallelDims& dims = {},
                       double z_loss = 0);

  const ModelArgs& args() const { return args_; }
  const TokenEmbedding& embedding() const { return embedding_; }
  const std::vector<TransformerBlock>& blocks() const { return blocks_; }
  const LossHead& head() const { return head_; }
  // The embedding, the blocks in order, the head: blocks().size() + 2 entries. A tied table is in the first
  // and in the last.
  const std::vector<UnitParameters>& units() const { return units_; }
  // Every parameter once, in unit order.
  std::vector<ParameterPtr> parameters() const;

  // The expert balance of every MoE block, in block order. It is saved state, not a parameter.
  std::vector<ExpertBalancePtr> balances() const;
  // Allocates all balances on that device, as zeros. The constructor allocates them on the CPU.
  void allocate_balances(at::Device device) const;

  // Every linear layer with the name of its module, "layers.0.attention.wq" ... "output", in forward order. A
  // tied head is "output" too. The FP8 conversion chooses among them.
  std::vector<std::pair<std::string, Linear*>> linears();
  // Every stack of experts with its name, "layers.1.moe.experts", in block order.
  std::vector<std::pair<std::string, Experts*>> experts();

  // Returns RoPE angles for sequences of seq_len tokens, each of which is one document.
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
