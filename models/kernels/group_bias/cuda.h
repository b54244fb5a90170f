// Calls group_bias/cuda.cuh with tensors.
#pragma once

#include <ATen/ops/empty.h>

#include "models/kernels/common/tensors.h"
#include "models/kernels/group_bias/group_bias.h"
#include "models/kernels/group_bias/task.h"

namespace hyperion::kernels::cuda {

inline const int32_t* ends_of_groups(const Tensor& ends, const Tensor& rows, const char* what) {
  TORCH_CHECK(ends.scalar_type() == at::kInt && ends.device() == rows.device() && ends.is_contiguous(), what,
              ": ends are ", ends.scalar_type(), " on ", ends.device());
  return ends.const_data_ptr<int32_t>();
}

template <typename Launch>
void add_group_bias(const Launch& launch, const Tensor& rows, const Tensor& given, const Tensor& ends) {
  const Tensor bias = given.contiguous();
  require_alike(bias, rows, "add_group_bias");
  require_numbers(bias, ends.size(0) * rows.size(1), "add_group_bias: bias");
  TORCH_CHECK(rows.stride(1) == 1, "add_group_bias: the elements of a row have gaps");
  launch(GroupBiasTask{.rows = rows.mutable_data_ptr(),
                       .stride = rows.stride(0),
                       .count = rows.size(0),
                       .n = rows.size(1),
                       .bias = bias.const_data_ptr(),
                       .ends = ends_of_groups(ends, rows, "add_group_bias"),
                       .groups = static_cast<int>(ends.size(0))},
         element_of(rows, "add_group_bias"));
}

template <typename Launch>
Tensor sum_groups(const Launch& launch, const Tensor& given, const Tensor& ends) {
  const Tensor grad = given.stride(1) == 1 ? given : given.contiguous();
  Tensor sums = at::empty({ends.size(0), grad.size(1)}, grad.options());
  launch(SumGroupsTask{.grad = grad.const_data_ptr(),
                       .stride = grad.stride(0),
                       .n = grad.size(1),
                       .ends = ends_of_groups(ends, grad, "sum_groups"),
                       .groups = static_cast<int>(ends.size(0)),
                       .sums = sums.mutable_data_ptr()},
         element_of(grad, "sum_groups"));
  return sums;
}

}  // namespace hyperion::kernels::cuda
