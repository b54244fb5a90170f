// The feed-forward part of a block: w2(activation(w1 x) * w3 x).
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "models/block_run.h"
#include "models/flavors/model_args.h"
#include "models/layers/merged_linear.h"
#include "models/ops.h"
#include "models/parallel_dims.h"

namespace hyperion::models {

class FeedForward {
 public:
  FeedForward(const ModelArgs& args, int64_t layer, const ParallelDims& dims = {});
  // The stream h [batch, seq, dim] and its norm, once for each of w1 and w3 -> h + w2(activation(w1 norm) *
  // w3 norm), the block's result: under BlockRun::Kind::kRecompute its elements are undefined.
  at::Tensor forward(const ops::SumAndNorm& h, const BlockRun& run) const;

  std::vector<ParameterPtr> parameters() const;
  std::vector<Linear*> linears();  // in the order in which forward runs them

  static constexpr int64_t kReaders = 2;  // of the norm

 private:
  Activation activation_;
  MergedLinear gate_up_;  // w1, w3
  Linear w2_;
};

}  // namespace hyperion::models
