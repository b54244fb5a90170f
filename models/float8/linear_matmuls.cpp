#include "models/float8/linear_matmuls.h"

#include "models/kernels/matmul.h"

namespace hyperion::float8 {
namespace {

using at::Tensor;

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

Quantized transpose(const Quantized& x) {
  if (x.scale.dim() == 0) return {x.values.t(), x.scale, x.inverse};
  return {x.values.t(), x.scale.t(), x.inverse.t()};
}

}  // namespace

struct LinearMatmuls::WeightCopies : DerivedWeight {
  Quantized out;                    // for out: [out, in], row-major
  std::optional<Quantized> grad_x;  // for grad_x: [out, in], column-major where that matters
};

LinearMatmuls::LinearMatmuls(Recipe recipe, Gemm gemm, std::shared_ptr<Counters> counters)
    : scalings_(scalings_of(recipe)), gemm_(gemm), counters_(std::move(counters)) {}

Tensor LinearMatmuls::output(const Tensor& x, const Parameter& weight) const {
  const Quantized rows = cast_operands(x, scalings_.x_out, std::nullopt).rows;
  return multiply(rows, transpose(weight_copies(weight).out), x.scalar_type(), /*fast_accumulate=*/true);
}

models::LinearGradients LinearMatmuls::gradients(const Tensor& grad, const Tensor& x,
                                                 const Parameter& weight) const {
  const at::ScalarType dtype = grad.scalar_type();
  const Operands g = cast_operands(grad, scalings_.g_x, scalings_.g_w);
  const Tensor grad_x = multiply(g.rows, weight_for_grad_x(weight), dtype, /*fast_accumulate=*/false);
  if (!scalings_.x_w) return {grad_x, kernels::matmul(grad.t(), x)};
  const Quantized inputs = cast_operands(x, std::nullopt, scalings_.x_w).columns;
  return {grad_x, multiply(transpose(g.columns), inputs, dtype, /*fast_accumulate=*/false)};
}

Tensor LinearMatmuls::multiply(const Quantized& a, const Quantized& b, at::ScalarType out,
                               bool fast_accumulate) const {
  ++counters_->products;
  return scaled_matmul(a, b, out, fast_accumulate, gemm_);
}

// Emulated products take any layout.
Operands LinearMatmuls::cast_operands(const Tensor& x, const std::optional<Scaling>& rows,
                                      const std::optional<Scaling>& columns) const {
  const Tensor dense = x.contiguous();
  if (gemm_ == Gemm::kNative) return quantize_operands(dense, rows, columns);
  Operands operands;
  if (rows) operands.rows = quantize(dense, *rows);
  if (columns) operands.columns = columns == rows ? operands.rows : quantize(dense, *columns);
  return operands;
}

// The copies that hang on the parameter, made where there are none since its contents changed.
LinearMatmuls::WeightCopies& LinearMatmuls::weight_copies(const Parameter& weight) const {
  if (!weight.derived) {
    auto copies = std::make_shared<WeightCopies>();
    if (weight.encoded.defined()) {
      copies->out = {weight.encoded, weight.encoded_scale, weight.encoded_scale.reciprocal()};
    } else {
      const Operands both = cast_operands(weight.weight, scalings_.w_out, scalings_.w_x);
      copies->out = both.rows;
      copies->grad_x = both.columns;
      counters_->weight_casts += scalings_.w_out == scalings_.w_x ? 1 : 2;
    }
    weight.derived = std::move(copies);
  }
  return static_cast<WeightCopies&>(*weight.derived);
}

// A weight that was gathered in FP8 is laid out for grad_x only when that is computed: it may be freed
// before.
const Quantized& LinearMatmuls::weight_for_grad_x(const Parameter& weight) const {
  WeightCopies& copies = weight_copies(weight);
  if (!copies.grad_x && gemm_ == Gemm::kEmulated) copies.grad_x = copies.out;
  if (!copies.grad_x)
    copies.grad_x = Quantized{cast(copies.out.values, {}, copies.out.scale, kE4m3).columns, copies.out.scale,
                              copies.out.inverse};
  return *copies.grad_x;
}

}  // namespace hyperion::float8
