#include "models/layers/linear.h"

#include <ATen/ops/sum.h>

#include "models/float8/linear_matmuls.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/matmul/matmul.h"

namespace hyperion::models {

at::Tensor Linear::output(Operand& x) const {
  if (bias_ == nullptr) return product(x);
  if (!float8_) return kernels::matmul_add_bias(x.values, weight_->weight.t(), bias_->weight);
  return product(x).add_(bias_->weight);
}

at::Tensor Linear::product(Operand& x) const {
  return float8_ ? float8_->output(x, *weight_, tp_group_) : kernels::matmul(x.values, weight_->weight.t());
}

at::Tensor Linear::input_gradient(Operand& grad) const {
  return float8_ ? float8_->input_gradient(grad, *weight_, tp_group_)
                 : kernels::matmul(grad.values, weight_->weight);
}

void Linear::set_float8(std::shared_ptr<const float8::LinearMatmuls> float8) {
  float8_ = std::move(float8);
  weight_->rounds_gradient = float8_->rounds_weight_gradient();
}

void Linear::prepare_input(Operand& x) const {
  if (float8_) float8_->cast_input(x);
}

void Linear::prepare_gradient(Operand& grad) const {
  if (float8_) float8_->cast_gradient(grad);
}

at::Tensor Linear::weight_gradient(Operand& grad, Operand& x) const {
  const at::ScalarType dtype = weight_->gradient_dtype.value_or(grad.dtype);
  return float8_ ? float8_->weight_gradient(grad, x, dtype)
                 : kernels::matmul(grad.values.t(), x.values, dtype);
}

bool Linear::multiplies_into(const at::Tensor& sum) const {
  return sum.defined() && sum.is_cuda() && sum.is_contiguous() &&
         sum.scalar_type() == weight_->gradient_dtype.value_or(weight_->weight.scalar_type()) &&
         (!float8_ || !(float8_->casts_input_for_backward() || float8_->rounds_weight_gradient()));
}

void Linear::add_weight_gradient(at::Tensor& sum, const Operand& grad, const Operand& x) const {
  if (sum.defined())
    kernels::add_matmul(sum, grad.values.t(), x.values);
  else
    sum = kernels::matmul(grad.values.t(), x.values, kernels::opmath_dtype(x.values));
}

at::Tensor Linear::bias_gradient(const at::Tensor& grad) const {
  if (bias_ == nullptr || !bias_->trainable) return {};
  return at::sum(grad, {0}, /*keepdim=*/false, bias_->gradient_dtype.value_or(grad.scalar_type()));
}

void accumulate_gradient(const Parameter& parameter, const at::Tensor& gradient) {
  at::Tensor& grad = parameter.weight.mutable_grad();
  if (grad.defined())
    grad.add_(gradient);
  else
    grad = gradient;
}

}  // namespace hyperion::models
