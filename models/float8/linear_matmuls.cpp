#include "models/float8/linear_matmuls.h"

#include "models/float8/blocks.h"
#include "models/kernels/matmul/matmul.h"

namespace hyperion::float8 {
namespace {

using at::Tensor;
using models::Operand;

Scalings scalings_of(Recipe recipe) {
  if (recipe == Recipe::kTensorwise)
    return {.g_x = {.dtype = kE5m2}, .g_w = Scaling{.dtype = kE5m2}, .x_w = Scaling{}};
  const Scaling row = {.granularity = Granularity::kRow, .power_of_two = true};
  const Scaling column = {.granularity = Granularity::kColumn, .power_of_two = true};
  const Scaling tensor = {.power_of_two = true};
  if (recipe == Recipe::kRowwiseWithGwHp)
    return {.x_out = row, .w_out = row, .g_x = row, .w_x = tensor, .g_w = {}, .x_w = {}};
  return {.x_out = row, .w_out = row, .g_x = row, .w_x = column, .g_w = column, .x_w = column};
}

Scalings scalings_of(MxRecipe recipe) {
  const bool up = recipe == MxRecipe::kCublasRceil;
  const Scaling row = {.granularity = Granularity::kRowBlock, .rounds_up = up};
  const Scaling column = {.granularity = Granularity::kColumnBlock, .rounds_up = up};
  return {.x_out = row, .w_out = row, .g_x = row, .w_x = column, .g_w = column, .x_w = column};
}

Quantized transpose(const Quantized& x) {
  if (x.scale.dim() == 0) return {x.values.t(), x.scale, x.inverse};
  return {x.values.t(), x.scale.t(), x.inverse.defined() ? x.inverse.t() : x.inverse};
}

}  // namespace

struct LinearMatmuls::WeightCopies : DerivedWeight {
  Quantized out;     // for out: [out, in], row-major
  Quantized grad_x;  // for grad_x: [out, in], column-major where that matters; made when it is needed
};

LinearMatmuls::LinearMatmuls(Recipe recipe, Gemm gemm, std::shared_ptr<Counters> counters)
    : scalings_(scalings_of(recipe)), gemm_(gemm), counters_(std::move(counters)) {}
LinearMatmuls::LinearMatmuls(MxRecipe recipe, Gemm gemm, std::shared_ptr<Counters> counters)
    : scalings_(scalings_of(recipe)), gemm_(gemm), counters_(std::move(counters)) {}

Quantized LinearMatmuls::cast_shard(const Tensor& rows, const Scaling& scaling, Exchange& group) const {
  ++counters_->operand_casts;
  return quantize_operands(rows.contiguous(), scaling, std::nullopt, {&group, 0}).rows;
}

Tensor LinearMatmuls::output(Operand& x, const Parameter& weight, Exchange* group) const {
  cast_input(x);
  return multiply(x.rows, transpose(weight_copies(weight, group).out), x.dtype, /*fast_accumulate=*/true,
                  x.is_first);
}

Tensor LinearMatmuls::input_gradient(Operand& grad, const Parameter& weight, Exchange* group) const {
  cast_gradient(grad);
  WeightCopies& copies = weight_copies(weight, group);
  // A weight that was gathered in FP8 is laid out for grad_x only now: it may be freed before.
  if (!copies.grad_x.values.defined()) add_column_copy(copies.grad_x, copies.out);
  return multiply(grad.rows, copies.grad_x, grad.dtype, /*fast_accumulate=*/false, grad.is_first);
}

Tensor LinearMatmuls::weight_gradient(Operand& grad, Operand& x, at::ScalarType dtype) const {
  if (rounds_weight_gradient()) dtype = grad.dtype;
  if (!scalings_.x_w) return kernels::matmul(grad.values.t(), x.values, dtype);
  add_copies(grad, std::nullopt, scalings_.g_w);
  add_copies(x, std::nullopt, scalings_.x_w);
  return multiply(transpose(grad.columns), x.columns, dtype, /*fast_accumulate=*/false, /*counts=*/true);
}

Tensor LinearMatmuls::multiply(const Quantized& a, const Quantized& b, at::ScalarType out,
                               bool fast_accumulate, bool counts) const {
  if (counts) ++counters_->products;
  return scaled_matmul(a, b, out, fast_accumulate, gemm_);
}

// Emulated products take any layout.
Operands LinearMatmuls::cast_operands(const Tensor& x, const std::optional<Scaling>& rows,
                                      const std::optional<Scaling>& columns, const PartOf& part) const {
  const bool blocks = in_blocks((rows ? *rows : *columns).granularity);
  if (gemm_ == Gemm::kNative && !blocks) return quantize_operands(x, rows, columns, part);
  const Tensor dense = x.contiguous();
  if (blocks) return cast_blocks(dense, rows, columns);
  Operands operands;
  if (rows) operands.rows = quantize(dense, *rows, part);
  if (columns) operands.columns = columns == rows ? operands.rows : quantize(dense, *columns, part);
  return operands;
}

// Makes those copies of x that have a scaling here and are not there yet.
void LinearMatmuls::add_copies(Operand& x, std::optional<Scaling> rows,
                               std::optional<Scaling> columns) const {
  if (x.rows.values.defined()) rows.reset();
  if (x.columns.values.defined() || x.is_part) columns.reset();
  if (x.values.defined()) {
    if (!rows && !columns) return;
    counters_->operand_casts += rows && columns && rows != columns ? 2 : 1;
    const Operands made = cast_operands(x.values, rows, columns);
    if (rows) x.rows = made.rows;
    if (columns) x.columns = made.columns;
  } else if (columns) {
    add_column_copy(x.columns, x.rows);
  }
}

// Makes the column-major copy of a matrix with one scale of the bits of its row-major copy.
void LinearMatmuls::add_column_copy(Quantized& columns, const Quantized& rows) const {
  columns = rows;
  if (gemm_ == Gemm::kNative)
    columns.values = cast(rows.values, {}, rows.scale, rows.values.scalar_type()).columns;
}

// The copies that hang on the parameter, made where there are none since its contents changed.
LinearMatmuls::WeightCopies& LinearMatmuls::weight_copies(const Parameter& weight, Exchange* group) const {
  if (!weight.derived) {
    auto copies = std::make_shared<WeightCopies>();
    if (weight.encoded.defined()) {
      copies->out = {weight.encoded.values, weight.encoded.scale, weight.encoded.inverse};
    } else {
      const PartOf part = {group, weight.split.value_or(0)};
      const Operands both = cast_operands(weight.weight, scalings_.w_out, scalings_.w_x, part);
      copies->out = both.rows;
      copies->grad_x = both.columns;
      counters_->weight_casts += scalings_.w_out == scalings_.w_x ? 1 : 2;
    }
    weight.derived = std::move(copies);
  }
  return static_cast<WeightCopies&>(*weight.derived);
}

}  // namespace hyperion::float8
