#include "models/float8/strategy.h"

#include <optional>

#include "models/float8/cast.h"
#include "models/kernels/matmul.h"

namespace hyperion::float8 {
namespace {

using at::Tensor;

// How the operands of the three products are scaled: out = x w^T, grad_x = g w, grad_w = g^T x.
struct Scalings {
  Scaling x_out{}, w_out{};
  Scaling g_x{}, w_x{};
  std::optional<Scaling> g_w, x_w;  // none: grad_w is in high precision
};

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

Quantized transposed(const Quantized& x) {
  if (x.scale.dim() == 0) return {x.values.t(), x.scale, x.inverse};
  return {x.values.t(), x.scale.t(), x.inverse.t()};
}

struct WeightCopies : DerivedWeight {
  Quantized out;                    // for out: [out, in], row-major
  std::optional<Quantized> grad_x;  // for grad_x: [out, in], column-major where that matters
};

class Float8Strategy : public LinearStrategy {
 public:
  Float8Strategy(Recipe recipe, Gemm gemm, std::shared_ptr<Counters> counters)
      : scalings_(scalings_of(recipe)), gemm_(gemm), counters_(std::move(counters)) {}

  Tensor forward(const Tensor& x, const Parameter& weight) const override {
    const Quantized rows = operands(x, scalings_.x_out, std::nullopt).rows;
    return product(rows, transposed(copies(weight).out), x.scalar_type(), /*fast_accumulate=*/true);
  }

  Gradients backward(const Tensor& grad, const Tensor& x, const Parameter& weight) const override {
    const at::ScalarType dtype = grad.scalar_type();
    const Operands g = operands(grad, scalings_.g_x, scalings_.g_w);
    const Tensor grad_x = product(g.rows, weight_for_grad_x(weight), dtype, /*fast_accumulate=*/false);
    if (!scalings_.x_w) return {grad_x, kernels::matmul(grad.t(), x)};
    const Quantized inputs = operands(x, std::nullopt, scalings_.x_w).columns;
    return {grad_x, product(transposed(g.columns), inputs, dtype, /*fast_accumulate=*/false)};
  }

  bool couples_rows() const override { return true; }

 private:
  Tensor product(const Quantized& a, const Quantized& b, at::ScalarType out, bool fast_accumulate) const {
    ++counters_->products;
    return scaled_matmul(a, b, out, fast_accumulate, gemm_);
  }

  // Emulated products take any layout.
  Operands operands(const Tensor& x, const std::optional<Scaling>& rows,
                    const std::optional<Scaling>& columns) const {
    const Tensor dense = x.contiguous();
    if (gemm_ == Gemm::kNative) return quantize_operands(dense, rows, columns);
    Operands made;
    if (rows) made.rows = quantize(dense, *rows);
    if (columns) made.columns = columns == rows ? made.rows : quantize(dense, *columns);
    return made;
  }

  WeightCopies& copies(const Parameter& weight) const {
    if (!weight.derived) {
      auto made = std::make_shared<WeightCopies>();
      if (weight.encoded.defined()) {
        made->out = {weight.encoded, weight.encoded_scale, weight.encoded_scale.reciprocal()};
      } else {
        const Operands both = operands(weight.weight, scalings_.w_out, scalings_.w_x);
        made->out = both.rows;
        made->grad_x = both.columns;
        counters_->weight_casts += scalings_.w_out == scalings_.w_x ? 1 : 2;
      }
      weight.derived = std::move(made);
    }
    return static_cast<WeightCopies&>(*weight.derived);
  }

  // A weight that came encoded is laid out for grad_x only when that is computed: it may be gone before.
  const Quantized& weight_for_grad_x(const Parameter& weight) const {
    WeightCopies& made = copies(weight);
    if (!made.grad_x && gemm_ == Gemm::kEmulated) made.grad_x = made.out;
    if (!made.grad_x)
      made.grad_x = Quantized{cast(made.out.values, {}, made.out.scale, kE4m3).columns, made.out.scale,
                              made.out.inverse};
    return *made.grad_x;
  }

  Scalings scalings_;
  Gemm gemm_;
  std::shared_ptr<Counters> counters_;
};

}  // namespace

std::shared_ptr<const LinearStrategy> make_strategy(Recipe recipe, Gemm gemm,
                                                    std::shared_ptr<Counters> counters) {
  return std::make_shared<const Float8Strategy>(recipe, gemm, std::move(counters));
}

}  // namespace hyperion::float8
