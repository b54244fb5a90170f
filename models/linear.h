// A linear layer without bias. Its three matrix products run in the operands' dtype or in FP8; its weight
// keeps name, shape and dtype either way, so that checkpoints and sharding do not depend on it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "base/parameter.h"

namespace hyperion::float8 {
class LinearMatmuls;
}

namespace hyperion::models {

struct LinearGradients {
  at::Tensor x;       // grad times weight -> [m, in]
  at::Tensor weight;  // grad transposed times x -> [out, in]; both in grad's dtype
};

class Linear {
 public:
  // `float8` null: products in the operands' dtype.
  explicit Linear(ParameterPtr weight, std::shared_ptr<const float8::LinearMatmuls> float8 = nullptr)
      : weight_(std::move(weight)), float8_(std::move(float8)) {}

  const ParameterPtr& weight() const { return weight_; }  // [out, in]
  void set_float8(std::shared_ptr<const float8::LinearMatmuls> float8) { float8_ = std::move(float8); }

  // x [..., in] -> [..., out], differentiable. Consults the active SelectiveCheckpoint
  // (models/activation_checkpoint.h).
  at::Tensor forward(const at::Tensor& x) const;

  // The products of forward and backward on rows, without autograd: x [m, in], grad [m, out].
  at::Tensor output(const at::Tensor& x) const;  // x times weight transposed -> [m, out] in x's dtype
  LinearGradients gradients(const at::Tensor& grad, const at::Tensor& x) const;

  // Whether a row's results depend on the other rows of the call (in FP8 rows share scales), so that the
  // layer must not be run in chunks.
  bool couples_rows() const { return float8_ != nullptr; }

 private:
  ParameterPtr weight_;
  std::shared_ptr<const float8::LinearMatmuls> float8_;
};

}  // namespace hyperion::models
