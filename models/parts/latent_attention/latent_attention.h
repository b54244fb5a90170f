// LatentAttention is multi-head latent attention (DeepSeek-V2, arXiv 2405.04434). Keys and values are
// projections of one narrow latent vector per token; queries may be projections of another. RoPE rotates some
// elements of queries and keys; the rotated elements of a key are shared by all heads.
//
// Tensor parallel ranks shard the heads. Replicated weights compute the latents, and the rotated elements of
// keys, for this rank's part of every sequence. The ranks all-gather these instead of the stream, except that
// queries without a latent gather the stream.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/layers/norm.h"
#include "models/parts/block_parts.h"

namespace hyperion::models {

class LatentAttention final : public AttentionPart {
 public:
  // parameters: made from describe_latent_attention().
  LatentAttention(const PartParameters& parameters, const ModelArgs& args, const ParallelDims& dims);
  at::Tensor forward(at::TensorList x, const SequenceContext& context, const BlockRun& run) const override;

  std::vector<Linear*> linears() override;
  int64_t consumers() const override { return 2; }  // wq or wq_a, and wkv_a

 private:
  struct Projections {
    // [batch, seq, ...] of full sequences: this rank's heads, and the rotated elements that all heads share.
    at::Tensor q, kv, shared;
  };
  Projections project(at::TensorList x, const BlockRun& run) const;

  Exchange* tp_group_;
  ContextGroup context_group_;
  int64_t heads_;  // on this rank
  int64_t kv_rank_, rotated_width_, value_width_;
  Linear q_in_;  // wq; or wq_a, which computes the latent that wq_b reads
  std::optional<Norm> q_norm_;
  std::optional<Linear> wq_b_;
  Linear wkv_a_;
  Norm kv_norm_;
  Linear wkv_b_, wo_;
};

}  // namespace hyperion::models
