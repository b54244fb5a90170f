// Calls rms_norm/cuda.cuh with tensors.
#pragma once

#include <vector>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "models/kernels/common/tensors.h"
#include "models/kernels/rms_norm/rms_norm.h"
#include "models/kernels/rms_norm/task.h"

namespace hyperion::kernels::cuda {

template <typename Launch>
AddRmsNormResult add_rms_norm(const Launch& launch, const Tensor& given_x, const Tensor& given_residual,
                              const Tensor& given_weight, double eps) {
  require_alike(given_weight, given_x, "add_rms_norm");
  require_alike(given_residual, given_x, "add_rms_norm");
  require_numbers(given_x, given_residual.numel(), "add_rms_norm: x");
  const Tensor x = given_x.contiguous(), residual = given_residual.contiguous(),
               weight = given_weight.contiguous();
  const Tensor sum = at::empty_like(residual), output = at::empty_like(residual);
  const int64_t n = output.size(-1), rows = n == 0 ? 0 : output.numel() / n;
  require_numbers(weight, n, "add_rms_norm: weight");
  const Tensor rstd = at::empty({rows}, output.options().dtype(at::kFloat));
  const AddRmsNormTask task{.x = x.const_data_ptr(),
                            .residual = residual.const_data_ptr(),
                            .weight = weight.const_data_ptr(),
                            .rows = rows,
                            .n = n,
                            .eps = static_cast<float>(eps),
                            .sum = sum.mutable_data_ptr(),
                            .output = output.mutable_data_ptr(),
                            .rstd = rstd.mutable_data_ptr<float>()};
  launch(task, element_of(x, "add_rms_norm"));
  return {sum, output, rstd};
}

template <typename Launch>
std::pair<Tensor, Tensor> add_rms_norm_backward(const Launch& launch, const Tensor& given_grad,
                                                const Tensor& given_grad_sum, const Tensor& given_sum,
                                                const Tensor& given_weight, const Tensor& given_rstd,
                                                at::TensorList given_more) {
  for (const Tensor* other : {&given_grad, &given_grad_sum, &given_weight})
    require_alike(*other, given_sum, "add_rms_norm_backward");
  const Tensor grad = given_grad.contiguous(), grad_sum = given_grad_sum.contiguous(),
               sum = given_sum.contiguous(), weight = given_weight.contiguous(),
               rstd = given_rstd.contiguous();
  const int64_t n = sum.size(-1), rows = n == 0 ? 0 : sum.numel() / n;
  require_numbers(grad, sum.numel(), "add_rms_norm_backward: grad");
  require_numbers(grad_sum, sum.numel(), "add_rms_norm_backward: grad_sum");
  require_numbers(weight, n, "add_rms_norm_backward: weight");
  require_numbers(rstd, rows, "add_rms_norm_backward: rstd");
  std::vector<Tensor> more;
  for (const Tensor& term : given_more) {
    require_alike(term, sum, "add_rms_norm_backward");
    require_numbers(term, sum.numel(), "add_rms_norm_backward: a further term");
    more.push_back(term.contiguous());
  }
  // Terms beyond the kernel's limit are summed before it, in the order of sum_of_terms().
  for (; more.size() > size_t{kMoreTerms}; more.pop_back()) {
    Tensor& before_last = more[more.size() - 2];
    before_last = at::add(more.back(), before_last);
  }
  Tensor grad_x = at::empty_like(sum), grad_weight = at::empty_like(weight);
  const int64_t blocks = rms_norm_blocks(rows);
  Tensor partial = at::empty({blocks, n}, sum.options().dtype(at::kFloat));
  AddRmsNormBackwardTask task{.grad = grad.const_data_ptr(),
                              .grad_sum = grad_sum.const_data_ptr(),
                              .sum = sum.const_data_ptr(),
                              .weight = weight.const_data_ptr(),
                              .rstd = rstd.const_data_ptr<float>(),
                              .rows = rows,
                              .n = n,
                              .blocks = blocks,
                              .grad_x = grad_x.mutable_data_ptr(),
                              .partial = partial.mutable_data_ptr<float>(),
                              .grad_weight = grad_weight.mutable_data_ptr()};
  for (size_t i = 0; i < more.size(); ++i) task.more[i] = more[i].const_data_ptr();
  launch(task, element_of(sum, "add_rms_norm_backward"));
  return {grad_x, grad_weight};
}

}  // namespace hyperion::kernels::cuda
