// PartParameters makes the parameters of one part of a block from its description.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/parameter.h"
#include "models/layers/linear.h"
#include "models/layers/norm.h"
#include "models/layers/parallel_dims.h"
#include "models/parts/description.h"

namespace hyperion::models {

// Makes parameter `fqn` with the facts of `shape`. `layer` as in init_of().
ParameterPtr make_described_parameter(std::string fqn, const ParameterShape& shape, const ModelArgs& args,
                                      int64_t layer);

// Makes parameter "layers.LAYER.NAME" with the dimensions, initial distribution and split of `shape`. Expert
// parameters are sharded over the expert parallel group. With such a group they are replicated over tensor
// parallel ranks, unless ParallelDims::shards_experts.
ParameterPtr make_block_parameter(const ParameterShape& shape, const ModelArgs& args, int64_t layer,
                                  const ParallelDims& dims);

class PartParameters {
 public:
  PartParameters(const PartDescription& part, const ModelArgs& args, int64_t layer, const ParallelDims& dims);

  const std::vector<ParameterPtr>& all() const { return parameters_; }  // in the description's order
  // Finds a parameter or buffer by its name in the block, "attention.wq.weight". Throws Error(kBug) if the
  // part has none of that name.
  const ParameterPtr& at(std::string_view name) const;

  // Makes the layer of weight "NAME.weight", with the bias "NAME.bias" if the part has it. A sharded layer
  // communicates its input or its output over the tensor parallel group. A replicated layer reads this rank's
  // part of every sequence.
  Linear linear(std::string_view name) const { return linear(name, dims_); }
  Linear linear(std::string_view name, const ParallelDims& dims) const;
  // Makes the norm of weight "NAME.weight". consumers: see Norm.
  Norm norm(std::string_view name, int64_t consumers = 1) const;

  const std::string& prefix() const { return prefix_; }  // "layers.LAYER."

 private:
  std::string prefix_;
  double norm_eps_;
  ParallelDims dims_;
  std::vector<ParameterPtr> parameters_, buffers_;
};

}  // namespace hyperion::models
