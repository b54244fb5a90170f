// RMSNorm over the last dimension (Zhang & Sennrich, arXiv 1910.07467), computed in fp32 (fp64 for fp64) and
// rounded once.
#pragma once

#include "models/kernels/kernel.h"

namespace hyperion::kernels {

struct RmsNormResult {
  at::Tensor output;  // shape and dtype of x
  at::Tensor rstd;    // 1 / sqrt(mean(x^2) + eps), [rows] fp32 (fp64 for fp64)
};
// x [..., n], weight [n].
using RmsNorm = RmsNormResult(const at::Tensor& x, const at::Tensor& weight, double eps);
// Returns the gradients of x and weight. The order of the sum over rows does not depend on the number of
// threads.
using RmsNormBackward = std::pair<at::Tensor, at::Tensor>(const at::Tensor& grad, const at::Tensor& x,
                                                          const at::Tensor& weight, const at::Tensor& rstd);

// The sum of a residual stream and its norm.
struct AddRmsNormResult {
  at::Tensor sum;     // residual + x, rounded to their dtype
  at::Tensor output;  // RMSNorm of the rounded sum
  at::Tensor rstd;    // as in RmsNormResult
};
// x, residual [..., n]; weight [n].
using AddRmsNorm = AddRmsNormResult(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                                    double eps);
// Returns the gradients of the sum and of weight. The norm's output has gradient sum_of_terms(grad, more),
// one term for each of its consumers; grad_sum is the gradient from all other consumers of the sum.
using AddRmsNormBackward = std::pair<at::Tensor, at::Tensor>(const at::Tensor& grad,
                                                             const at::Tensor& grad_sum,
                                                             const at::Tensor& sum, const at::Tensor& weight,
                                                             const at::Tensor& rstd, at::TensorList more);
// Returns grad + (more[0] + (more[1] + ..)), with each sum rounded; grad itself if `more` is empty.
at::Tensor sum_of_terms(const at::Tensor& grad, at::TensorList more);

inline void append(Values& values, const RmsNormResult& x) {
  append(values, x.output);
  append(values, x.rstd);
}
inline void append(Values& values, const AddRmsNormResult& x) {
  for (const at::Tensor* t : {&x.sum, &x.output, &x.rstd}) append(values, *t);
}

namespace plain {
RmsNorm rms_norm;
RmsNormBackward rms_norm_backward;
AddRmsNorm add_rms_norm;
AddRmsNormBackward add_rms_norm_backward;
}  // namespace plain

namespace cpu {
RmsNorm rms_norm;
RmsNormBackward rms_norm_backward;
AddRmsNorm add_rms_norm;
AddRmsNormBackward add_rms_norm_backward;
}  // namespace cpu

namespace libtorch {  // libtorch's fused GPU kernels
RmsNorm rms_norm;
RmsNormBackward rms_norm_backward;
}  // namespace libtorch

}  // namespace hyperion::kernels
