// RMSNorm over the last dimension, fp32 inside (fp64 for fp64), one rounding at the end. Zhang & Sennrich,
// arXiv 1910.07467.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

namespace hyperion::kernels {

struct RmsNormResult {
  at::Tensor output;  // as x
  at::Tensor rstd;    // 1 / sqrt(mean(x^2) + eps), [rows] fp32 (fp64 for fp64)
};
// x [..., n], weight [n].
RmsNormResult rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps);
// Gradients of x and weight. The sum over rows has a fixed order whatever the number of threads.
std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                    const at::Tensor& weight, const at::Tensor& rstd);

// The sum of a residual stream and its norm.
struct AddRmsNormResult {
  at::Tensor sum;     // residual + x, rounded to their dtype
  at::Tensor output;  // RMSNorm of the rounded sum
  at::Tensor rstd;    // as RmsNormResult's
};
// x, residual [..., n]; weight [n].
AddRmsNormResult add_rms_norm_forward(const at::Tensor& x, const at::Tensor& residual,
                                      const at::Tensor& weight, double eps);
// Gradients of the sum and of weight. The sum's is the norm's plus grad_sum, that of everything else that
// reads it. The norm's gradient is sum_of_terms(grad, more), with two further terms at most.
std::pair<at::Tensor, at::Tensor> add_rms_norm_backward(const at::Tensor& grad, const at::Tensor& grad_sum,
                                                        const at::Tensor& sum, const at::Tensor& weight,
                                                        const at::Tensor& rstd, at::TensorList more = {});
// grad + (more[0] + (more[1] + ..)), each sum rounded: grad itself where there is no more.
at::Tensor sum_of_terms(const at::Tensor& grad, at::TensorList more);

namespace plain {  // the same in ATen operations: specification, and what devices without a fused kernel run
RmsNormResult rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double eps);
std::pair<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                    const at::Tensor& weight, const at::Tensor& rstd);
AddRmsNormResult add_rms_norm_forward(const at::Tensor& x, const at::Tensor& residual,
                                      const at::Tensor& weight, double eps);
std::pair<at::Tensor, at::Tensor> add_rms_norm_backward(const at::Tensor& grad, const at::Tensor& grad_sum,
                                                        const at::Tensor& sum, const at::Tensor& weight,
                                                        const at::Tensor& rstd, at::TensorList more = {});
}  // namespace plain

}  // namespace hyperion::kernels
