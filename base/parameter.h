// A parameter is data: its name, global shape, initial distribution, and the tensor that layers currently
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

#include "base/box.h"
#include "base/init.h"
#include "base/placement.h"

namespace hyperion {

// DerivedWeight is a cache that a layer computes from a weight's current value, such as its FP8 copies.
struct DerivedWeight {
  virtual ~DerivedWeight() = default;
};

struct Parameter;
using ParameterPtr = std::shared_ptr<Parameter>;

struct Parameter {
  std::string fqn;             // the name in checkpoints; no wrapper, recipe or mesh ever changes it
  std::vector<int64_t> shape;  // global (unsharded) shape
  Init init;
  // True if it is trained. A frozen parameter is gathered, saved and loaded as any other, but has no
  // gradient, no state of the optimizer and no part in reductions and clipping. Set before its owner shards
  // it.
  bool trainable = true;
  std::vector<std::string> aliases{};  // further names it is saved under (a tied head)

  // The number of equal matrices that the rows of a parameter of two dimensions are, such as heads; a stack
  // of three dimensions has as many as rows. An optimizer of matrices treats each alone.
  int64_t matrices = 1;

  // The dimension that may be sharded over tensor parallel ranks; nullopt: replicated.
  std::optional<int> split{};
  // The part of the global tensor that this rank's layers compute with, after shard() and shard_experts():
  // its cuts, and the shape that they leave.
  Domain domain = Domain::kDense;
  std::vector<Cut> cuts{};
  std::vector<int64_t> local{};

  // The tensor that layers read: an autograd leaf of shape `local` in the compute dtype. Its owner
  // (parallel/) creates it once and fills and empties its storage; its .grad() collects this rank's gradient
  // until the owner reduces it. It requires no gradient where the parameter is frozen, and layers make none.
  at::Tensor weight{};

  // The dtype in which the owner accumulates gradients. A layer whose product can write it does so, which
  // saves a rounding, and `weight`'s .grad() then has this dtype. nullopt: the weight's dtype.
  std::optional<at::ScalarType> gradient_dtype{};
  // True for the bias of a linear layer: its gradient comes in `gradient_dtype`, as a weight's.
  bool is_bias = false;
  // True if the layer's product cannot write `gradient_dtype`: its gradient comes in the weight's dtype.
  bool rounds_gradient = false;

  // Set where the owner gathers the contents in an encoded form instead: `encoded` of shape `local`, in units
  // of encoded_inverse = 1 / encoded_scale (0-dim fp32 both). `weight` then never has bytes and only collects
  // the gradient.
  at::Tensor encoded{}, encoded_scale{}, encoded_inverse{};

  // The matrix of all rows of several weights that read one input, in their order; the weights share it.
  // Stacks of matrices have the rows of each matrix side by side in it. pack->weight is defined if the owner
  // stores the weights contiguously; layers may then multiply it once instead of each weight. It has no
  // .grad() of its own.
  ParameterPtr pack{};

  // The layer's cache; the owner drops it when the value changes or is freed.
  mutable std::shared_ptr<DerivedWeight> derived{};

  // Keeps this rank's part of `parts` along `split`; a replicated parameter stays as it is. Call it before
  // the weight exists.
  void shard(int64_t parts, int64_t index) {
    if (!split || parts == 1) return;
    cuts.push_back({.dim = *split, .parts = parts, .index = index});
    local = box_of(shape, cuts).shape;
  }

  // Keeps this rank's part of the experts, which are dimension 0. Call it before the weight exists.
  void shard_experts(int64_t parts, int64_t index) {
    if (parts == 1) return;
    domain = Domain::kExpert;
    cuts.push_back({.dim = 0, .parts = parts, .index = index});
    local = box_of(shape, cuts).shape;
  }

  int64_t numel() const { return whole_box(shape).numel(); }  // of the whole tensor
  // The rows of the part that layers read, and the elements of each.
  int64_t rows() const { return local.at(0); }
  int64_t row_numel() const { return rows() == 0 ? 0 : whole_box(local).numel() / rows(); }
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
