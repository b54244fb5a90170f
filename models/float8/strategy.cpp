#include "models/float8/strategy.h"

#include <ATen/ops/constant_pad_nd.h>

#include <optional>

#include "models/kernels/matmul.h"

namespace hyperion::float8 {
namespace {

using at::Tensor;

// How the operands of the three products are scaled: out = x w^T, grad_x = g w, grad_w = g^T x.
struct Scalings {
  Scaling x_out{}, w_out{};
  Scaling g_x{}, w_x{};
  Scaling g_w{}, x_w{};  // unused when grad_w is in high precision
};

Scalings scalings_of(Recipe recipe) {
  if (recipe == Recipe::kTensorwise) return {.g_x = {.dtype = kE5m2}, .g_w = {.dtype = kE5m2}};
  const Scaling row = {.granularity = Granularity::kRow, .power_of_two = true};
  const Scaling column = {.granularity = Granularity::kColumn, .power_of_two = true};
  const Scaling tensor = {.power_of_two = true};
  const bool high_precision = recipe == Recipe::kRowwiseWithGwHp;
  return {.x_out = row,
          .w_out = row,
          .g_x = row,
          .w_x = high_precision ? tensor : column,
          .g_w = column,
          .x_w = column};
}

Quantized transposed(const Quantized& x) {
  return {x.values.t(), x.scale.dim() == 0 ? x.scale : x.scale.t()};
}

struct WeightCopies : DerivedWeight {
  std::optional<Quantized> out;     // for out: [out, in], row-major
  std::optional<Quantized> grad_x;  // for grad_x: [out, in], column-major where that matters
};

class Float8Strategy : public LinearStrategy {
 public:
  Float8Strategy(Recipe recipe, Gemm gemm, std::shared_ptr<Counters> counters)
      : recipe_(recipe), scalings_(scalings_of(recipe)), gemm_(gemm), counters_(std::move(counters)) {}

  Tensor forward(const Tensor& x, const Parameter& weight) const override {
    const Quantized rows = quantize(x.contiguous(), scalings_.x_out);
    return product(rows, transposed(weight_for_out(weight)), x.scalar_type(), /*fast_accumulate=*/true);
  }

  Gradients backward(const Tensor& grad, const Tensor& x, const Parameter& weight) const override {
    const Tensor rows = grad.contiguous();
    const Quantized g = quantize(rows, scalings_.g_x);
    const Tensor grad_x =
        product(g, weight_for_grad_x(weight), grad.scalar_type(), /*fast_accumulate=*/false);
    if (recipe_ == Recipe::kRowwiseWithGwHp) return {grad_x, kernels::matmul(grad.t(), x)};
    const bool same = recipe_ == Recipe::kTensorwise;  // one scale, one set of bits
    const Quantized columns = inner_operand(same ? g : quantize(rows, scalings_.g_w));
    const Quantized inputs = inner_operand(quantize(x.contiguous(), scalings_.x_w));
    return {grad_x, product(transposed(columns), inputs, grad.scalar_type(), /*fast_accumulate=*/false)};
  }

  bool couples_rows() const override { return true; }

 private:
  Tensor product(const Quantized& a, const Quantized& b, at::ScalarType out, bool fast_accumulate) const {
    ++counters_->products;
    return scaled_matmul(a, b, out, fast_accumulate, gemm_);
  }

  Quantized column_major(const Quantized& x) const {
    if (gemm_ == Gemm::kEmulated) return x;
    return {x.values.t().contiguous().t(), x.scale};
  }

  // An operand of grad_w, whose rows are summed over: column-major, and filled up with zeros to the multiple
  // of 16 rows that the hardware wants.
  Quantized inner_operand(const Quantized& x) const {
    const int64_t missing = (16 - x.values.size(0) % 16) % 16;
    if (gemm_ == Gemm::kEmulated || missing == 0) return column_major(x);
    const Tensor bytes = at::constant_pad_nd(x.values.view(at::kByte), {0, 0, 0, missing});
    return column_major({bytes.view(x.values.scalar_type()), x.scale});
  }

  WeightCopies& copies(const Parameter& weight) const {
    if (!weight.derived) weight.derived = std::make_shared<WeightCopies>();
    return static_cast<WeightCopies&>(*weight.derived);
  }

  Quantized cast(const Parameter& weight, const Scaling& scaling) const {
    if (weight.encoded.defined()) return {weight.encoded, weight.encoded_scale};
    ++counters_->weight_casts;
    return quantize(weight.weight, scaling);
  }

  const Quantized& weight_for_out(const Parameter& weight) const {
    std::optional<Quantized>& copy = copies(weight).out;
    if (!copy) copy = cast(weight, scalings_.w_out);
    return *copy;
  }

  const Quantized& weight_for_grad_x(const Parameter& weight) const {
    std::optional<Quantized>& copy = copies(weight).grad_x;
    const bool same = recipe_ == Recipe::kTensorwise;
    if (!copy) copy = column_major(same ? weight_for_out(weight) : cast(weight, scalings_.w_x));
    return *copy;
  }

  Recipe recipe_;
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
