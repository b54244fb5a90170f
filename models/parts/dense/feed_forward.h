// The feed-forward part of a block: w2(activation(w1 x) * w3 x).
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "models/layers/merged_linear.h"
#include "models/parts/block_parts.h"

namespace hyperion::models {

class FeedForward final : public FeedForwardPart {
 public:
  // name: of the module in its block; hidden_dim: its width.
  FeedForward(const ModelArgs& args, int64_t layer, const char* name, int64_t hidden_dim,
              const ParallelDims& dims);
  at::Tensor forward(const ops::SumAndNorm& h, const BlockRun& run) const override;
  // What is added to the stream: x [batch, seq, dim], once for each of w1 and w3 -> [batch, seq, dim]. Not
  // computed under BlockRun::Kind::kRecompute: its elements are undefined.
  at::Tensor of_norm(at::TensorList x, const BlockRun& run) const;

  std::vector<ParameterPtr> parameters() const override;
  std::vector<Linear*> linears() override;
  int64_t readers() const override { return 2; }  // w1, w3

 private:
  Activation activation_;
  MergedLinear gate_up_;  // w1, w3
  Linear w2_;
};

}  // namespace hyperion::models
