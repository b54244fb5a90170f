// A linear layer without bias. Its three matrix products run in the operands' dtype or in FP8; its weight
// keeps name, shape and dtype either way, so that checkpoints and sharding do not depend on it.
// models/layers/linear_node.h makes a differentiable node of them.
#pragma once

#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>

#include "base/exchange.h"
#include "base/parameter.h"
#include "models/float8/operand.h"

namespace hyperion::float8 {
class LinearMatmuls;
}

namespace hyperion::models {

class Linear {
 public:
  // `float8` null: products in the operands' dtype. `ranks`: those that divide the weight (Parameter::split)
  // and the sequence between matrices; null: this rank has it whole. `chunked`: whether what they exchange
  // travels in as many chunks as there are ranks, under the products (ParallelDims::chunked).
  explicit Linear(ParameterPtr weight, std::shared_ptr<const float8::LinearMatmuls> float8 = nullptr,
                  Exchange* ranks = nullptr, bool chunked = false)
      : weight_(std::move(weight)), float8_(std::move(float8)), ranks_(ranks), chunked_(chunked) {}

  const ParameterPtr& weight() const { return weight_; }  // [out, in]
  void set_float8(std::shared_ptr<const float8::LinearMatmuls> float8);
  const float8::LinearMatmuls* float8() const { return float8_.get(); }
  Exchange* ranks() const { return ranks_; }
  bool chunked() const { return chunked_ && ranks_ != nullptr; }

  // The products of forward and backward with this rank's part of the weight, without autograd: x [m, in],
  // grad [m, out].
  at::Tensor output(Operand& x) const;             // x times weight transposed -> [m, out]
  at::Tensor input_gradient(Operand& grad) const;  // grad times weight -> [m, in]
  // grad transposed times x -> [out, in], in Parameter::gradient_dtype where the product can leave it so,
  // else in the compute dtype
  at::Tensor weight_gradient(Operand& grad, Operand& x) const;
  // Adds the gradient of some rows of a product to `sum`, [out, in] in fp32 (fp64 for fp64), which the first
  // call makes. Not where rows are coupled.
  void add_weight_gradient(at::Tensor& sum, const Operand& grad, const Operand& x) const;
  // Whether add_weight_gradient() adds within the product itself, on a GPU: `sum` may be undefined.
  bool multiplies_into(const at::Tensor& sum) const;
  // Adds it to the weight's .grad(), in whatever dtype it is.
  void accumulate(const at::Tensor& weight_gradient) const;

  // Before output() or input_gradient() of parts of an operand: casts what they read of it.
  void prepare_input(Operand& x) const;
  void prepare_gradient(Operand& grad) const;

  // Whether a row's results depend on the other rows of the call (in FP8 rows share scales), so that the
  // layer must not be run in chunks.
  bool couples_rows() const { return float8_ != nullptr; }

 private:
  ParameterPtr weight_;
  std::shared_ptr<const float8::LinearMatmuls> float8_;
  Exchange* ranks_;
  bool chunked_;
};

}  // namespace hyperion::models
