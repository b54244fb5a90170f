#include "models/linear.h"

#include "models/float8/linear_matmuls.h"
#include "models/kernels/matmul.h"

namespace hyperion::models {

at::Tensor Linear::output(Operand& x) const {
  return float8_ ? float8_->output(x, *weight_, ranks_) : kernels::matmul(x.values, weight_->weight.t());
}

at::Tensor Linear::input_gradient(Operand& grad) const {
  return float8_ ? float8_->input_gradient(grad, *weight_, ranks_)
                 : kernels::matmul(grad.values, weight_->weight);
}

void Linear::prepare_input(Operand& x) const {
  if (float8_) float8_->cast_input(x);
}

void Linear::prepare_gradient(Operand& grad) const {
  if (float8_) float8_->cast_gradient(grad);
}

at::Tensor Linear::weight_gradient(Operand& grad, Operand& x) const {
  return float8_ ? float8_->weight_gradient(grad, x) : kernels::matmul(grad.values.t(), x.values);
}

}  // namespace hyperion::models
