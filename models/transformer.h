// The Llama-shaped decoder (llama3, qwen3 dense) on one device, as a sequence of units: the embedding, each
// block, and the head with its loss. The trainer runs the units forward and backward itself; a unit reads its
// weights through Parameter::weight and knows nothing of ranks, gathering or checkpointing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/parameter.h"
#include "models/flavors/model_args.h"
#include "models/kernels/attention/attention.h"
#include "models/linear.h"
#include "models/ops.h"
#include "models/regions.h"

namespace hyperion::models {

// What every block of one microbatch shares.
struct SequenceContext {
  at::Tensor cos, sin;  // RoPE angles, fp32 [seq, head_dim/2] or [batch, seq, head_dim/2]
  kernels::Documents documents;
};

// The context of packed documents from that of plain sequences of the same length. positions: int32 or int64
// [batch, seq] on the context's device, counted inside each document, which are `documents`.
SequenceContext inside_documents(const SequenceContext& plain, const at::Tensor& positions,
                                 const kernels::Documents& documents);

// One microbatch on the compute device.
struct Microbatch {
  at::Tensor tokens;  // int64 [batch, seq]
  at::Tensor labels;  // int64 [batch, seq], -100 = ignored
  SequenceContext context;
};

// With a tensor parallel group (models/regions.h), [batch, seq, dim] of activations means this rank's part of
// every sequence, [batch, seq / T, dim]; tokens, labels and the context are those of whole sequences. Every
// rank of the group must call the same functions in the same order.

class TokenEmbedding {
 public:
  explicit TokenEmbedding(ParameterPtr table, Exchange* ranks = nullptr)
      : table_(std::move(table)), ranks_(ranks) {}
  // tokens int64 [batch, seq] -> [batch, seq, dim]
  at::Tensor forward(const at::Tensor& tokens) const;

 private:
  ParameterPtr table_;
  Exchange* ranks_;
};

// Which run of a block within a step.
enum class BlockRun {
  kForward,  // its result goes to the next block
  kAgain,    // for the graph of its backward: nobody reads the result, so what makes it last (a product, an
             // exchange, a sum) is left out and its elements are undefined
};

class TransformerBlock {
 public:
  TransformerBlock(const ModelArgs& args, int64_t layer, const Regions& regions = {});
  // x [batch, seq, dim] -> [batch, seq, dim]
  at::Tensor forward(const at::Tensor& x, const SequenceContext& context,
                     BlockRun run = BlockRun::kForward) const;
  std::vector<ParameterPtr> parameters() const;
  // In the order in which forward runs them.
  std::vector<Linear*> linears() { return {&wq_, &wk_, &wv_, &wo_, &w1_, &w3_, &w2_}; }

 private:
  // Of the normed stream.
  at::Tensor attention(const ops::SumAndNorm& stream, const SequenceContext& context) const;
  // The stream and the layers' result for its norm, added up.
  at::Tensor feed_forward(const ops::SumAndNorm& stream, BlockRun run) const;

  ModelArgs args_;
  Exchange* ranks_;
  Linear wq_, wk_, wv_, wo_, w1_, w2_, w3_;
  ParameterPtr q_norm_, k_norm_, attention_norm_, ffn_norm_;
};

class LossHead {
 public:
  // chunk_bytes bounds the logits held at once in the compute dtype, a chunk; 0 = 64 MiB on a CPU, 1 GiB on a
  // GPU, which adds each chunk's gradient to the head's; there 256 divides its rows. (A head that couples
  // rows takes all at once.) With a tensor parallel group logits are those of this rank's part of the
  // vocabulary, and two chunks of half the size are alive: one's statistics are exchanged while the next
  // one's are computed. Without loss parallel they are of the whole vocabulary, and there are up to two
  // copies of them.
  LossHead(const ModelArgs& args, ParameterPtr norm, ParameterPtr output, int64_t chunk_bytes,
           const Regions& regions = {});

  // Cross-entropy of x [batch, seq, dim] against labels int64 [batch, seq] (-100 = ignored), summed: fp32
  // scalar (fp64 for an fp64 model), of all tokens and with the same bits on every rank of a tensor parallel
  // group. No gradients.
  at::Tensor loss_sum(const at::Tensor& x, const at::Tensor& labels) const;

  struct LossAndGrad {
    at::Tensor loss_sum;  // unscaled
    at::Tensor grad_x;    // gradient of scale * loss_sum
  };
  // Loss and gradient in one go, chunk by chunk: each chunk's logits turn into their own gradient in place,
  // so logits never exist whole in fp32. Adds the gradients of scale * loss_sum to the weights' .grad().
  // `scale`: 0-dim tensor.
  LossAndGrad loss_and_grad(const at::Tensor& x, const at::Tensor& labels, const at::Tensor& scale) const;

  // x [batch, seq, dim] -> logits [batch, seq, vocab] in the compute dtype. No gradients. Not with a tensor
  // parallel group: Error(kBug).
  at::Tensor logits(const at::Tensor& x) const;

  Linear& output() { return output_; }

 private:
  struct Chunk;
  struct Rows;
  int64_t rows_per_chunk(const Rows& rows) const;
  Chunk start_chunk(Rows& rows, int64_t first, int64_t count) const;
  at::Tensor finish_chunk(Chunk& chunk, const at::Tensor* scale) const;
  template <typename EachChunk>
  at::Tensor add_up_loss(Rows& rows, const at::Tensor* scale, const EachChunk& each) const;

  double norm_eps_;
  int64_t chunk_bytes_;
  ParameterPtr norm_;
  Linear output_;
  bool loss_parallel_;
};

// A group of parameters that are gathered, used and released together.
struct UnitParameters {
  std::string name;  // "tok_embeddings", "layers.0", ..., "norm,output"
  std::vector<ParameterPtr> parameters;
};

class Transformer {
 public:
  // loss_chunk_bytes: see LossHead. Parameters are divided over the ranks of `regions`.
  explicit Transformer(const ModelArgs& args, int64_t loss_chunk_bytes = 0, const Regions& regions = {});

  const ModelArgs& args() const { return args_; }
  const TokenEmbedding& embedding() const { return embedding_; }
  const std::vector<TransformerBlock>& blocks() const { return blocks_; }
  const LossHead& head() const { return head_; }
  // Embedding, blocks in order, head: blocks().size() + 2 entries. A tied table is in the first and the last.
  const std::vector<UnitParameters>& units() const { return units_; }
  // Every parameter once, in unit order.
  std::vector<ParameterPtr> parameters() const;

  // Every linear layer, in the order of forward, with the name of its module, "layers.0.attention.wq" ...
  // "output" (a tied head too): to choose how each multiplies.
  std::vector<std::pair<std::string, Linear*>> linears();

  // RoPE angles and plain causal attention for sequences of seq_len tokens.
  SequenceContext context(int64_t seq_len, at::Device device) const;

 private:
  ModelArgs args_;
  ParameterPtr table_, norm_, output_;  // output_ is table_ when the head is tied
  TokenEmbedding embedding_;
  std::vector<TransformerBlock> blocks_;
  LossHead head_;
  std::vector<UnitParameters> units_;
};

}  // namespace hyperion::models
