// Attention is the self-attention of a block: causal inside documents, with grouped queries and RoPE, and in
// some models with a window or with sinks.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/layers/merged_linear.h"
#include "models/layers/norm.h"
#include "models/parts/block_parts.h"

namespace hyperion::models {

class Attention final : public AttentionPart {
 public:
  // parameters: made from describe_attention() of the same layer.
  Attention(const PartParameters& parameters, const ModelArgs& args, int64_t layer, const ParallelDims& dims);
  at::Tensor forward(at::TensorList x, const SequenceContext& context, const BlockRun& run) const override;

  std::vector<Linear*> linears() override;
  int64_t consumers() const override { return 3; }  // wq, wk, wv

 private:
  ops::RotatedHeads rotated_heads(at::TensorList x, const SequenceContext& context,
                                  const BlockRun& run) const;

  int64_t head_dim_;
  ContextGroup context_group_;
  RopeStyle rope_style_;
  MergedLinear qkv_;
  Linear wo_;
  std::optional<Norm> q_norm_, k_norm_;
  int64_t window_;
  ParameterPtr sinks_;  // null without
};

}  // namespace hyperion::models
