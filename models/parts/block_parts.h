// A block has two parts: attention and a feed-forward. ModelArgs choose them for each layer.
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
  virtual std::vector<Linear*> linears() = 0;                                  // in forward order
  virtual int64_t consumers() const = 0;  // the number of layers that read the norm, see ops::SumAndNorm

 private:
  std::vector<ParameterPtr> parameters_;
};

class AttentionPart : public BlockPart {
 public:
  using BlockPart::BlockPart;
  // x: the norm [batch, seq, dim], once for each consumer. Returns [batch, seq, dim].
  virtual at::Tensor forward(at::TensorList x, const SequenceContext& context, const BlockRun& run) const = 0;
};

class FeedForwardPart : public BlockPart {
 public:
  using BlockPart::BlockPart;
  // h: the stream [batch, seq, dim] and its norm, once for each consumer. Returns h.sum + feed_forward(norm),
  // the output of the block. A recomputation leaves its elements undefined.
  virtual at::Tensor forward(const ops::SumAndNorm& h, const BlockRun& run) const = 0;
  virtual std::shared_ptr<ExpertBalance> balance() const { return nullptr; }  // null without experts
  virtual Experts* experts() { return nullptr; }                              // null without experts
};

std::unique_ptr<AttentionPart> make_attention(const ModelArgs& args, int64_t layer, const ParallelDims& dims);
std::unique_ptr<FeedForwardPart> make_feed_forward(const ModelArgs& args, int64_t layer,
                                                   const ParallelDims& dims);

}  // namespace hyperion::models
