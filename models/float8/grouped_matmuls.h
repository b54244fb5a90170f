// GroupedMatmuls has the three grouped products of a stack of experts' matrices in FP8 (forward, dgrad,
// wgrad) and casts their operands. All operands are e4m3, as in torchao's prototype/moe_training.
#pragma once

#include <memory>

#include "models/args/float8_recipe.h"
#include "models/float8/groups.h"
#include "models/float8/linear_matmuls.h"

namespace hyperion::float8 {

// Rows are cast once for all products that read them (models::Operand). A stack is cast once until its
// contents change; the Parameter holds the copies, so one object serves all layers.
class GroupedMatmuls {
 public:
  GroupedMatmuls(GroupedRecipe recipe, Gemm gemm, std::shared_ptr<Counters> counters);

  int64_t unit() const { return unit_of(recipe_); }

  // x [rows, in], grad [rows, out], stack [groups, out, in]. `group`, which may be null, shards one of the
  // stack's widths. Scales cover the unsharded stack, so its bits do not depend on the number of ranks
  // (beyond whether w1 and w3 are one stack, Parameter::pack): the first product after a change of the
  // contents may be collective over the group. `ends`: see models/float8/groups.h.
  at::Tensor output(models::Operand& x, const Parameter& stack, const at::Tensor& ends,
                    Exchange* group) const;
  at::Tensor input_gradient(models::Operand& grad, const Parameter& stack, const at::Tensor& ends,
                            Exchange* group) const;
  // Returns the wgrad, [groups, out, in] in the compute dtype.
  at::Tensor weight_gradient(models::Operand& grad, models::Operand& x, const at::Tensor& ends) const;

 private:
  struct StackCopies;
  const StackCopies& stack_copies(const Parameter& stack, Exchange* group) const;
  Quantized cast_blocks_of_stack(const at::Tensor& matrices) const;
  Quantized cast_rows(const at::Tensor& x) const;
  void add_rows(models::Operand& x) const;
  void add_columns(models::Operand& x, const at::Tensor& ends) const;

  GroupedRecipe recipe_;
  Scaling row_, column_;
  Gemm gemm_;
  std::shared_ptr<Counters> counters_;
};

}  // namespace hyperion::float8
