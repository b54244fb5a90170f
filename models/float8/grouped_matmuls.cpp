#include "models/float8/grouped_matmuls.h"

#include <utility>

#include "models/float8/blocks.h"

namespace hyperion::float8 {
namespace {

using at::Tensor;
using models::Operand;

Scaling scaling_of(GroupedRecipe recipe, bool of_rows) {
  if (recipe == GroupedRecipe::kMx)
    return {.granularity = of_rows ? Granularity::kRowBlock : Granularity::kColumnBlock, .rounds_up = true};
  return {.granularity = of_rows ? Granularity::kRow : Granularity::kColumn, .power_of_two = true};
}

}  // namespace

struct GroupedMatmuls::StackCopies : DerivedWeight {
  Quantized out;     // [groups, out, in], with scales along `in`
  Quantized grad_x;  // [groups, in, out], with scales along `out`
};

GroupedMatmuls::GroupedMatmuls(GroupedRecipe recipe, Gemm gemm, std::shared_ptr<Counters> counters)
    : recipe_(recipe),
      row_(scaling_of(recipe, /*of_rows=*/true)),
      column_(scaling_of(recipe, /*of_rows=*/false)),
      gemm_(gemm),
      counters_(std::move(counters)) {}

Tensor GroupedMatmuls::output(Operand& x, const Parameter& stack, const Tensor& ends, Exchange* group) const {
  add_rows(x);
  ++counters_->products;
  return scaled_grouped_matmul(x.rows, stack_copies(stack, group).out, ends, x.dtype, gemm_);
}

Tensor GroupedMatmuls::input_gradient(Operand& grad, const Parameter& stack, const Tensor& ends,
                                      Exchange* group) const {
  add_rows(grad);
  ++counters_->products;
  return scaled_grouped_matmul(grad.rows, stack_copies(stack, group).grad_x, ends, grad.dtype, gemm_);
}

Tensor GroupedMatmuls::weight_gradient(Operand& grad, Operand& x, const Tensor& ends) const {
  add_columns(grad, ends);
  add_columns(x, ends);
  ++counters_->products;
  return scaled_grouped_outer_matmul(grad.columns, x.columns, ends, grad.dtype, gemm_);
}

Quantized GroupedMatmuls::cast_rows(const Tensor& x) const {
  if (recipe_ == GroupedRecipe::kMx) return cast_blocks(x, row_, std::nullopt).rows;
  if (gemm_ == Gemm::kNative) return quantize_operands(x, row_, std::nullopt).rows;
  return quantize(x.contiguous(), row_);
}

void GroupedMatmuls::add_rows(Operand& x) const {
  if (x.rows.values.defined()) return;
  x.rows = cast_rows(x.values);
  ++counters_->operand_casts;
}

void GroupedMatmuls::add_columns(Operand& x, const Tensor& ends) const {
  if (x.columns.values.defined()) return;
  x.columns = cast_columns_of_groups(x.values, ends, column_);
  ++counters_->operand_casts;
}

// MXFP8 of matrices [groups, n, k], with scales along k.
Quantized GroupedMatmuls::cast_blocks_of_stack(const Tensor& matrices) const {
  const int64_t groups = matrices.size(0), n = matrices.size(1);
  const Quantized rows = cast_rows(matrices.reshape({groups * n, matrices.size(2)}));
  return {rows.values.view(matrices.sizes()), rows.scale.view({groups, n, -1})};
}

const GroupedMatmuls::StackCopies& GroupedMatmuls::stack_copies(const Parameter& stack,
                                                                Exchange* group) const {
  if (!stack.derived) {
    auto copies = std::make_shared<StackCopies>();
    const Tensor weight = stack.weight.detach();
    if (recipe_ == GroupedRecipe::kMx) {  // whose blocks lie within a rank's shard
      copies->out = cast_blocks_of_stack(weight);
      copies->grad_x = cast_blocks_of_stack(weight.transpose(1, 2).contiguous());
    } else {
      Operands both = cast_stack(weight, {.group = group, .dim = stack.split.value_or(1)});
      copies->out = std::move(both.rows);
      copies->grad_x = std::move(both.columns);
    }
    counters_->weight_casts += 2;
    stack.derived = std::move(copies);
  }
  return static_cast<const StackCopies&>(*stack.derived);
}

}  // namespace hyperion::float8
