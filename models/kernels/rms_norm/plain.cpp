#include <ATen/TensorOperators.h>
#include <ATen/ops/rsqrt.h>

#include "models/kernels/common/dtype.h"
#include "models/kernels/rms_norm/rms_norm.h"

namespace hyperion::kernels {

at::Tensor sum_of_terms(const at::Tensor& grad, at::TensorList more) {
  at::Tensor others;
  for (size_t i = more.size(); i-- > 0;) others = others.defined() ? others + more[i] : more[i];
  return others.defined() ? others + grad : grad;
}

namespace plain {

RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide_x = x.to(opmath_dtype(x));
  const at::Tensor rstd = at::rsqrt(wide_x.square().mean(-1, /*keepdim=*/true).add_(eps));
  return {(wide_x * rstd).mul_(weight.to(opmath_dtype(x))).to(x.scalar_type()), rstd.flatten()};
}

std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                    const at::Tensor& weight, const at::Tensor& rstd) {
  const at::Tensor wide_grad = grad.to(opmath_dtype(x));
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = 1;
  const at::Tensor factor = rstd.view(shape);
  const at::Tensor normed = x.to(opmath_dtype(x)) * factor;
  const at::Tensor grad_normed = wide_grad * weight.to(opmath_dtype(x));
  const at::Tensor mean = (grad_normed * normed).mean(-1, /*keepdim=*/true);
  const at::Tensor dx = (grad_normed - normed * mean).mul_(factor);
  const at::Tensor dw = (wide_grad * normed).reshape({-1, x.size(-1)}).sum(0);
  return {dx.to(x.scalar_type()), dw.to(weight.scalar_type())};
}

AddRmsNormResult add_rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                              double eps) {
  const at::Tensor sum = residual + x.reshape(residual.sizes());
  auto [output, rstd] = rms_norm(sum, weight, eps);
  return {sum, std::move(output), std::move(rstd)};
}

std::pair<at::Tensor, at::Tensor> add_rms_norm_backward(const at::Tensor& grad, const at::Tensor& grad_sum,
                                                        const at::Tensor& sum, const at::Tensor& weight,
                                                        const at::Tensor& rstd, at::TensorList more) {
  auto [dx, dw] = rms_norm_backward(sum_of_terms(grad, more), sum, weight, rstd);
  dx.add_(grad_sum);
  return {dx, dw};
}

}  // namespace plain
}  // namespace hyperion::kernels
