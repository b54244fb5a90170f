#include <ATen/ops/_fused_rms_norm.h>
#include <ATen/ops/_fused_rms_norm_backward.h>

#include "models/kernels/rms_norm/rms_norm.h"

namespace hyperion::kernels::libtorch {

RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const auto [output, rstd] = at::_fused_rms_norm(x.contiguous(), weight.sizes(), weight, eps);
  return {output, rstd.flatten()};
}

std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                    const at::Tensor& weight, const at::Tensor& rstd) {
  std::vector<int64_t> rows(x.sizes().begin(), x.sizes().end());
  rows.back() = 1;
  auto [dx, dw] = at::_fused_rms_norm_backward(grad.contiguous(), x.contiguous(), weight.sizes(),
                                               rstd.view(rows), weight, {true, true});
  return {std::move(dx), std::move(dw)};
}

}  // namespace hyperion::kernels::libtorch
