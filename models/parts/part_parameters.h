// The parameters of one part of a block, made from its description.
#pragma once

#include <string_view>
#include <vector>

#include "base/parameter.h"
#include "models/layers/linear.h"
#include "models/layers/norm.h"
#include "models/layers/parallel_dims.h"
#include "models/parts/description.h"

namespace hyperion::models {

// "layers.LAYER.NAME" with the shape's dimensions, initial distribution and split. Experts are this rank's of
// the expert parallel group, and complete where tensor parallel ranks do not shard each of them.
ParameterPtr make_block_parameter(const ParameterShape& shape, const ModelArgs& args, int64_t layer,
                                  const ParallelDims& dims);

class PartParameters {
 public:
  PartParameters(const PartDescription& part, const ModelArgs& args, int64_t layer, const ParallelDims& dims);

  const std::vector<ParameterPtr>& all() const { return parameters_; }  // in the description's order
  // By its name in the block, "attention.wq.weight". Throws Error(kBug) where the part has none of that name.
  const ParameterPtr& at(std::string_view name) const;

  // The layer of weight "NAME.weight". Where tensor parallel ranks shard it they exchange its input or its
  // result; a replicated one reads the rows of this rank's part of every sequence.
  Linear linear(std::string_view name) const { return linear(name, dims_); }
  Linear linear(std::string_view name, const ParallelDims& dims) const;
  // consumers: layers that read the norm of the stream, each of which is given it as a tensor of its own.
  Norm norm(std::string_view name, int64_t consumers = 1) const;

  const std::string& prefix() const { return prefix_; }  // "layers.LAYER."

 private:
  std::string prefix_;
  double norm_eps_;
  ParallelDims dims_;
  std::vector<ParameterPtr> parameters_, buffers_;
};

}  // namespace hyperion::models
