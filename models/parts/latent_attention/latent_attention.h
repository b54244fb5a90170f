// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values are products of one narrow
// latent vector of a token, queries may be of another. Of a query and a key some elements carry no position
// and the others, which all heads share in a key, are rotated.
//
// Tensor parallel ranks divide the heads. Each makes the latents, and the rotated elements of keys, of its
// part of every sequence, with weights that all of them have; these are what is gathered, not the stream, but
// for queries without a latent.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/layers/norm.h"
#include "models/parts/block_parts.h"

namespace hyperion::models {

class LatentAttention final : public AttentionPart {
 public:
  // parameters: of describe_latent_attention().
  LatentAttention(const PartParameters& parameters, const ModelArgs& args, const ParallelDims& dims);
  at::Tensor forward(at::TensorList x, const SequenceContext& context, const BlockRun& run) const override;

  std::vector<Linear*> linears() override;
  int64_t consumers() const override { return 2; }  // of queries, and of keys and values

 private:
  struct Projections {
    at::Tensor q, kv, shared;  // [batch, seq, ...] of whole sequences: this rank's heads, and what all share
  };
  Projections project(at::TensorList x, const BlockRun& run) const;

  Exchange* ranks_;
  ContextGroup context_group_;
  int64_t heads_;  // of this rank
  int64_t kv_rank_, rotated_width_, value_width_;
  Linear q_in_;  // wq, or wq_a, whose result is the latent of wq_b
  std::optional<Norm> q_norm_;
  std::optional<Linear> wq_b_;
  Linear wkv_a_;
  Norm kv_norm_;
  Linear wkv_b_, wo_;
};

}  // namespace hyperion::models
