// The dense feed-forward part of a block: w2(activation(w1 x) * w3 x).
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/layers/merged_linear.h"
#include "models/parts/block_parts.h"

namespace hyperion::models {

// The layers of the feed-forward. The shared experts of an MoE block are such layers too.
class GatedFeedForward {
 public:
  // parameters: contain NAME.w1, NAME.w2 and NAME.w3 (see gated_matrices()).
  GatedFeedForward(const PartParameters& parameters, const std::string& name, Activation activation,
                   const ParallelDims& dims);
  // x: the norm [batch, seq, dim], once, or once for each of w1 and w3. Returns [batch, seq, dim], without
  // the residual. A recomputation leaves its elements undefined.
  at::Tensor forward(at::TensorList x, const BlockRun& run) const;
  std::vector<Linear*> linears();
  static int64_t consumers() { return 2; }  // w1, w3

 private:
  Activation activation_;
  MergedLinear gate_up_;  // w1, w3
  Linear w2_;
};

class FeedForward final : public FeedForwardPart {
 public:
  // parameters: made from describe_feed_forward().
  FeedForward(const PartParameters& parameters, const ModelArgs& args, const ParallelDims& dims)
      : FeedForwardPart(parameters), layers_(parameters, "feed_forward", args.activation, dims) {}
  at::Tensor forward(const ops::SumAndNorm& h, const BlockRun& run) const override {
    return ops::residual_sum(h.sum, layers_.forward(h.normed, run), run);
  }
  std::vector<Linear*> linears() override { return layers_.linears(); }
  int64_t consumers() const override { return GatedFeedForward::consumers(); }

 private:
  GatedFeedForward layers_;
};

}  // namespace hyperion::models
