// A parameter is data: its description (base/parameter_description.h), and the tensor that layers currently
// read. Models declare parameters, parallel/ shards and binds them, the optimizer and the checkpoint
// describe state by them; there is no second source of names or shapes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/parameter_description.h"

namespace hyperion {

// DerivedWeight is a cache that a layer computes from a weight's current value, such as its FP8 copies.
struct DerivedWeight {
  virtual ~DerivedWeight() = default;
};

// A weight that its owner gathers in an encoded form: `values` of shape `local`, in units of
// inverse = 1 / scale (0-dim fp32 both).
struct EncodedWeight {
  at::Tensor values{}, scale{}, inverse{};
  bool defined() const { return values.defined(); }
};

struct Parameter;
using ParameterPtr = std::shared_ptr<Parameter>;

struct Parameter : LayerShard {
  // The tensor that layers read: an autograd leaf of shape `local` in the compute dtype. Its owner
  // (parallel/) creates it once and fills and empties its storage; its .grad() collects this rank's gradient
  // until the owner reduces it. It requires no gradient where the parameter is frozen, and layers make none.
  at::Tensor weight{};
  // The encoded weight, defined if the owner gathers it in place of `weight`, which then never has bytes and
  // only collects the gradient.
  EncodedWeight encoded{};
  // The layer's cache; the owner drops it when the value changes or is freed.
  mutable std::shared_ptr<DerivedWeight> derived{};

  // The matrix of all rows of several weights that read one input, in their order; the weights share it.
  // Stacks of matrices have the rows of each matrix side by side in it. pack->weight is defined if the owner
  // stores the weights contiguously; layers may then multiply it once instead of each weight. It has no
  // .grad() of its own.
  ParameterPtr pack{};

  // The dtype in which the owner accumulates gradients. A layer whose product can write it does so, which
  // saves a rounding, and `weight`'s .grad() then has this dtype. nullopt: the weight's dtype.
  std::optional<at::ScalarType> gradient_dtype{};
  // True if the layer's product cannot write `gradient_dtype`: its gradient comes in the weight's dtype.
  bool rounds_gradient = false;
};

inline ParameterPtr make_parameter(std::string fqn, std::vector<int64_t> shape, Init init,
                                   std::optional<int> split = {}) {
  auto parameter = std::make_shared<Parameter>();
  parameter->fqn = std::move(fqn);
  parameter->shape = std::move(shape);
  parameter->local = parameter->shape;
  parameter->init = init;
  parameter->split = split;
  return parameter;
}

}  // namespace hyperion
