// Self-attention of a block: causal inside documents, with grouped queries and rotated queries and keys.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/block_run.h"
#include "models/flavors/model_args.h"
#include "models/layers/merged_linear.h"
#include "models/layers/norm.h"
#include "models/microbatch.h"
#include "models/parallel_dims.h"

namespace hyperion::models {

class Attention {
 public:
  Attention(const ModelArgs& args, int64_t layer, const ParallelDims& dims = {});
  // x [batch, seq, dim], once for each of wq, wk and wv -> [batch, seq, dim]
  at::Tensor forward(at::TensorList x, const SequenceContext& context, const BlockRun& run) const;

  std::vector<ParameterPtr> parameters() const;
  std::vector<Linear*> linears();  // in the order in which forward runs them

  static constexpr int64_t kReaders = 3;  // of x

 private:
  ops::RotatedHeads rotated_heads(at::TensorList x, const SequenceContext& context,
                                  const BlockRun& run) const;

  int64_t head_dim_;
  RopeStyle rope_style_;
  MergedLinear qkv_;
  Linear wo_;
  std::optional<Norm> q_norm_, k_norm_;
};

}  // namespace hyperion::models
