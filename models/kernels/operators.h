// The fused kernels of the CUDA library (models/kernels/*/cuda.cuh) as operators of libtorch's dispatcher: the
// library registers them when it is loaded, and nothing here needs to know of it. Elsewhere an operator runs
// the plain form. Callers choose by models/kernels/fused.h whether to call them; shapes are those of the
// plain forms.
#pragma once

#include <tuple>
#include <utility>

#include <ATen/core/Tensor.h>

#include "models/kernels/cross_entropy/cross_entropy.h"
#include "models/kernels/rms_norm/rms_norm.h"
#include "models/kernels/rope/rope.h"

namespace hyperion::kernels::operators {

// x.v may be undefined: then the result's is too.
Heads rope_heads(const Heads& x, const at::Tensor& cos, const at::Tensor& sin, models::RopeStyle style,
                 int64_t parts);
Heads rope_heads_backward(const Heads& grads, const at::Tensor& cos, const at::Tensor& sin,
                          models::RopeStyle style, int64_t parts);
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
std::pair<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& grad, const at::Tensor& gate,
                                                  const at::Tensor& up);
AddRmsNormResult add_rms_norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                              double eps);
std::pair<at::Tensor, at::Tensor> add_rms_norm_backward(const at::Tensor& grad, const at::Tensor& grad_sum,
                                                        const at::Tensor& sum, const at::Tensor& weight,
                                                        const at::Tensor& rstd, at::TensorList more);
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor* scale);
at::Tensor vocab_statistics(const at::Tensor& logits, const at::Tensor& labels, const VocabPart& part);
void vocab_gradient(const at::Tensor& logits, const at::Tensor& labels, const VocabPart& part,
                    const at::Tensor& log_sum_exp, const at::Tensor& scale);

}  // namespace hyperion::kernels::operators
