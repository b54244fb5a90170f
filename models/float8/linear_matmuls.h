// LinearMatmuls has the three matrix products of a linear layer in FP8 (forward, dgrad, wgrad) and casts
// their operands by the recipe.
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

// Counts FP8 work on the training thread.
struct Counters {
  int64_t products = 0;       // FP8 matrix products
  int64_t weight_casts = 0;   // casts of weights from bf16; weights that were all-gathered in FP8 have none
  int64_t operand_casts = 0;  // casts of activations and gradients; several layouts of one cast count once
};

// The scalings of the operands of the three products: out = x w^T, grad_x = g w, grad_w = g^T x.
struct Scalings {
  Scaling x_out{}, w_out{};
  Scaling g_x{}, w_x{};
  std::optional<Scaling> g_w, x_w;  // nullopt: grad_w is in high precision
};

// Rounding has torchao's order throughout. Activations and gradients are cast once for all products that read
// them (models::Operand); the same cast makes an activation's column-major copy for backward, if that is
// kept. A weight is cast once until its contents change, and not at all if it was all-gathered in FP8
// (Parameter::encoded: tensor-wise in e4m3, tensorwise recipe only). The Parameter holds the copies, so one
// object serves all layers.
class LinearMatmuls {
 public:
  LinearMatmuls(Recipe recipe, Gemm gemm, std::shared_ptr<Counters> counters);
  LinearMatmuls(MxRecipe recipe, Gemm gemm, std::shared_ptr<Counters> counters);

  // x [m, in], grad [m, out], weight [out, in], which `group` (may be null) shards. Scales cover the
  // unsharded weight, so its bits do not depend on the number of ranks: the first product after a change of
  // the contents may be collective over the group.
  at::Tensor output(models::Operand& x, const Parameter& weight, Exchange* group) const;
  at::Tensor input_gradient(models::Operand& grad, const Parameter& weight, Exchange* group) const;
  // Returns the wgrad in `dtype` if the product supports it (on a GPU with one scale per tensor, or in high
  // precision), else in the compute dtype.
  at::Tensor weight_gradient(models::Operand& grad, models::Operand& x, at::ScalarType dtype) const;
  // Returns whether wgrad is always in the compute dtype. Emulated products round like the products that they
  // emulate.
  bool rounds_weight_gradient() const {
    return gemm_ == Gemm::kEmulated || (scalings_.x_w && scalings_.x_w->granularity != Granularity::kTensor);
  }

  // Cast an operand for output() and input_gradient() before it is multiplied in parts, so that all parts
  // have the same scales.
  void cast_input(models::Operand& x) const {
    add_copies(x, scalings_.x_out, x.makes_columns ? scalings_.x_w : std::nullopt);
  }
  void cast_gradient(models::Operand& grad) const { add_copies(grad, scalings_.g_x, scalings_.g_w); }
  // Returns whether weight_gradient() reads an FP8 copy of the input, which output() can make early
  // (Operand::makes_columns).
  bool casts_input_for_backward() const { return scalings_.x_w.has_value(); }
  // Returns whether output() and input_gradient() scale each row of an operand independently.
  bool casts_rows_alone() const {
    const auto alone = [](const Scaling& scaling) {
      return scaling.granularity == Granularity::kRow || scaling.granularity == Granularity::kRowBlock;
    };
    return alone(scalings_.x_out) && alone(scalings_.g_x);
  }

  // Return the scaling of a layer's input, or of its output's gradient, if all products use the same one with
  // one scale per tensor, so that one FP8 copy serves them all; else nullopt.
  std::optional<Scaling> one_scale_of_input() const { return one_scale(scalings_.x_out, scalings_.x_w); }
  std::optional<Scaling> one_scale_of_gradient() const { return one_scale(scalings_.g_x, scalings_.g_w); }
  // Casts this rank's rows of an operand with such a scaling, for an all-gather over `group`. The scale
  // covers the rows of all ranks.
  Quantized cast_shard(const at::Tensor& rows, const Scaling& scaling, Exchange& group) const;

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
  WeightCopies& weight_copies(const Parameter& weight, Exchange* group) const;

  Scalings scalings_;
  Gemm gemm_;
  std::shared_ptr<Counters> counters_;
};

}  // namespace hyperion::float8
