// The two parts that a block is put together of: attention, and a feed-forward. Which ones a layer has is a
// matter of its ModelArgs.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/parameter.h"
#include "models/args/model_args.h"
#include "models/layers/block_run.h"
#include "models/layers/linear.h"
#include "models/layers/microbatch.h"
#include "models/layers/ops.h"
#include "models/layers/parallel_dims.h"
#include "models/parts/part_parameters.h"

namespace hyperion::models {

struct ExpertBalance;
class Experts;

class BlockPart {
 public:
  explicit BlockPart(const PartParameters& parameters) : parameters_(parameters.all()) {}
  virtual ~BlockPart() = default;
  const std::vector<ParameterPtr>& parameters() const { return parameters_; }  // in the description's order
  virtual std::vector<Linear*> linears() = 0;  // in the order in which forward runs them
  virtual int64_t consumers() const = 0;  // layers that read the norm, each given it as a tensor of its own

 private:
  std::vector<ParameterPtr> parameters_;
};

class AttentionPart : public BlockPart {
 public:
  using BlockPart::BlockPart;
  // x [batch, seq, dim], once for each consumer -> [batch, seq, dim]
  virtual at::Tensor forward(at::TensorList x, const SequenceContext& context, const BlockRun& run) const = 0;
};

class FeedForwardPart : public BlockPart {
 public:
  using BlockPart::BlockPart;
  // The stream h [batch, seq, dim] and its norm, once for each consumer -> h + what the part makes of the
  // norm: the block's result. Under BlockRun::Kind::kRecompute its elements are undefined.
  virtual at::Tensor forward(const ops::SumAndNorm& h, const BlockRun& run) const = 0;
  virtual std::shared_ptr<ExpertBalance> balance() const { return nullptr; }  // of its experts
  virtual Experts* experts() { return nullptr; }                              // null: it has none
};

std::unique_ptr<AttentionPart> make_attention(const ModelArgs& args, int64_t layer, const ParallelDims& dims);
std::unique_ptr<FeedForwardPart> make_feed_forward(const ModelArgs& args, int64_t layer,
                                                   const ParallelDims& dims);

}  // namespace hyperion::models
