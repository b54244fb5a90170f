// The three matrix products of a linear layer in FP8: which operand is cast how, for each recipe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/exchange.h"
#include "base/parameter.h"
#include "models/args/float8_recipe.h"
#include "models/float8/cast.h"
#include "models/float8/operand.h"
#include "models/float8/scaled_matmul.h"

namespace hyperion::float8 {

// What has been done, on the training thread.
struct Counters {
  int64_t products = 0;       // FP8 matrix products
  int64_t weight_casts = 0;   // copies of weights made from bf16; gathered ones are not counted
  int64_t operand_casts = 0;  // of activations and gradients; several layouts of the same numbers count once
};

// How the operands of the three products are scaled: out = x w^T, grad_x = g w, grad_w = g^T x.
struct Scalings {
  Scaling x_out{}, w_out{};
  Scaling g_x{}, w_x{};
  std::optional<Scaling> g_w, x_w;  // none: grad_w is in high precision
};

// Torchao's order of rounding throughout. Activations and gradients are cast once for all products that read
// them (models::Operand), an activation for backward too where the column-major copy is kept for it. A weight
// is cast once as long as its contents stay, and not at all when it was gathered in FP8 (Parameter::encoded,
// tensor-wise in e4m3: the tensorwise recipe only). One object serves all layers: what is cast of a weight
// hangs on its Parameter.
class LinearMatmuls {
 public:
  LinearMatmuls(Recipe recipe, Gemm gemm, std::shared_ptr<Counters> counters);
  LinearMatmuls(MxRecipe recipe, Gemm gemm, std::shared_ptr<Counters> counters);

  // On rows, as Linear's: x [m, in], grad [m, out], weight [out, in], of which `ranks` (may be null) have a
  // part each: scales of a weight are those of the whole, so that its bits do not depend on their number.
  // Its first product after a change of its contents may be collective over the ranks.
  at::Tensor output(models::Operand& x, const Parameter& weight, Exchange* ranks) const;
  at::Tensor input_gradient(models::Operand& grad, const Parameter& weight, Exchange* ranks) const;
  // In `dtype` where the product can leave it there (products on a GPU with one scale for each tensor, and
  // those in the compute dtype), else in the compute dtype.
  at::Tensor weight_gradient(models::Operand& grad, models::Operand& x, at::ScalarType dtype) const;
  // Whether it is always in the compute dtype. Emulated products round as those that they stand for.
  bool rounds_weight_gradient() const {
    return gemm_ == Gemm::kEmulated || (scalings_.x_w && scalings_.x_w->granularity != Granularity::kTensor);
  }

  // Make what output() and input_gradient() read of an operand, before it is multiplied in parts, so that all
  // parts have the scales of the whole.
  void cast_input(models::Operand& x) const {
    add_copies(x, scalings_.x_out, x.makes_columns ? scalings_.x_w : std::nullopt);
  }
  void cast_gradient(models::Operand& grad) const { add_copies(grad, scalings_.g_x, scalings_.g_w); }
  // Whether weight_gradient() reads an FP8 copy of the input, which output() can make in its place
  // (Operand::makes_columns).
  bool casts_input_for_backward() const { return scalings_.x_w.has_value(); }
  // Whether output() and input_gradient() cast each row of an operand by itself.
  bool casts_rows_alone() const {
    const auto alone = [](const Scaling& scaling) {
      return scaling.granularity == Granularity::kRow || scaling.granularity == Granularity::kRowBlock;
    };
    return alone(scalings_.x_out) && alone(scalings_.g_x);
  }

  // The scaling of a layer's input (of the gradient of its output) in all of its products, where that is one
  // scale for the tensor: its FP8 form then serves them all. None for recipes that need more forms.
  std::optional<Scaling> one_scale_of_input() const { return one_scale(scalings_.x_out, scalings_.x_w); }
  std::optional<Scaling> one_scale_of_gradient() const { return one_scale(scalings_.g_x, scalings_.g_w); }
  // This rank's rows of an operand, with such a scaling, as all `ranks` gather it.
  Quantized cast_shard(const at::Tensor& rows, const Scaling& scaling, Exchange& ranks) const;

 private:
  struct WeightCopies;
  static std::optional<Scaling> one_scale(const Scaling& rows, const std::optional<Scaling>& columns) {
    return rows == columns && rows.granularity == Granularity::kTensor ? columns : std::nullopt;
  }
  at::Tensor multiply(const Quantized& a, const Quantized& b, at::ScalarType out, bool fast_accumulate,
                      bool counts) const;
  Operands cast_operands(const at::Tensor& x, const std::optional<Scaling>& rows,
                         const std::optional<Scaling>& columns, const PartOf& part = {}) const;
  void add_copies(models::Operand& x, std::optional<Scaling> rows, std::optional<Scaling> columns) const;
  void add_column_copy(Quantized& columns, const Quantized& rows) const;
  WeightCopies& weight_copies(const Parameter& weight, Exchange* ranks) const;

  Scalings scalings_;
  Gemm gemm_;
  std::shared_ptr<Counters> counters_;
};

}  // namespace hyperion::float8
