// The three grouped products of a stack of experts' matrices in FP8: which operand is cast how. torchao's
// (prototype/moe_training): e4m3 throughout, forward and both gradients.
#pragma once

#include <memory>

#include "models/args/float8_recipe.h"
#include "models/float8/groups.h"
#include "models/float8/linear_matmuls.h"

namespace hyperion::float8 {

// Rows are cast once for all products that read them (models::Operand), and a stack once as long as its
// contents stay. One object serves all layers: what is cast of a stack hangs on its Parameter.
class GroupedMatmuls {
 public:
  GroupedMatmuls(GroupedRecipe recipe, Gemm gemm, std::shared_ptr<Counters> counters);

  int64_t unit() const { return unit_of(recipe_); }

  // x [rows, in], grad [rows, out], stack [groups, out, in], of which `ranks` (may be null) have a part of
  // one of the widths each: scales of a stack are those of the whole, so that its bits do not depend on their
  // number. Its first product after a change of its contents may be collective over the ranks. `ends` as in
  // models/float8/groups.h.
  at::Tensor output(models::Operand& x, const Parameter& stack, const at::Tensor& ends,
                    Exchange* ranks) const;
  at::Tensor input_gradient(models::Operand& grad, const Parameter& stack, const at::Tensor& ends,
                            Exchange* ranks) const;
  // [groups, out, in] in the compute dtype
  at::Tensor weight_gradient(models::Operand& grad, models::Operand& x, const at::Tensor& ends) const;

 private:
  struct StackCopies;
  const StackCopies& stack_copies(const Parameter& stack, Exchange* ranks) const;
  Quantized cast_stack(const at::Tensor& matrices, const PartOf& part) const;
  Quantized cast_rows(const at::Tensor& x, const PartOf& part = {}) const;
  void add_rows(models::Operand& x) const;
  void add_columns(models::Operand& x, const at::Tensor& ends) const;

  GroupedRecipe recipe_;
  Scaling row_, column_;
  Gemm gemm_;
  std::shared_ptr<Counters> counters_;
};

}  // namespace hyperion::float8
