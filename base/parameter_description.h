// ParameterDescription and LayerShard describe a parameter without its tensors: the first what all ranks
// know of it, the second the part that the layers of a rank compute with. This header includes no libtorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/box.h"
#include "base/init.h"
#include "base/placement.h"

namespace hyperion {

// The facts of a parameter that are equal on all ranks. They are set before its owner shards it.
struct ParameterDescription {
  std::string fqn;             // the name in checkpoints; no wrapper, recipe or mesh ever changes it
  std::vector<int64_t> shape;  // global (unsharded) shape
  Init init;
  // True if it is trained. A frozen parameter is gathered, saved and loaded as any other, but has no
  // gradient, no state of the optimizer and no part in reductions and clipping.
  bool trainable = true;
  std::vector<std::string> aliases{};  // further names it is saved under (a tied head)

  // The number of equal matrices that the rows of a parameter of two dimensions are, such as heads; a stack
  // of three dimensions has as many as rows. An optimizer of matrices treats each alone.
  int64_t matrices = 1;

  // The dimension that may be sharded over tensor parallel ranks; nullopt: replicated.
  std::optional<int> split{};

  int64_t numel() const { return whole_box(shape).numel(); }  // of the whole tensor
  // Returns whether it is the bias of a linear layer, which has one dimension.
  bool is_linear_bias() const { return shape.size() == 1 && fqn.ends_with(".bias"); }
};

// LayerShard is a parameter and the part of its global tensor that this rank's layers compute with, after
// shard() and shard_experts(). FSDP then shards the rows of that part.
struct LayerShard : ParameterDescription {
  Domain domain = Domain::kDense;
  std::vector<Cut> cuts{};
  // The shape of the part. Weights that are stored side by side (Parameter::pack) are cut one by one, so the
  // shape of their matrix is the sum of theirs and does not follow from `cuts`.
  std::vector<int64_t> local{};

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

  // The rows of the part, and the elements of each.
  int64_t rows() const { return local.at(0); }
  int64_t row_numel() const { return rows() == 0 ? 0 : whole_box(local).numel() / rows(); }
};

}  // namespace hyperion
