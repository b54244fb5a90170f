// Calls clamped_gate/cuda.cuh with tensors.
#pragma once

#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "models/kernels/clamped_gate/clamped_gate.h"
#include "models/kernels/clamped_gate/task.h"
#include "models/kernels/common/tensors.h"

namespace hyperion::kernels::cuda {

template <typename Launch>
Tensor clamped_gate(const Launch& launch, const Tensor& given) {
  const Tensor h = given.contiguous();
  std::vector<int64_t> shape = h.sizes().vec();
  TORCH_CHECK(shape.back() % 2 == 0, "clamped_gate: ", h.sizes(), ", expected pairs");
  shape.back() /= 2;
  Tensor output = at::empty(shape, h.options());
  launch(
      ClampedGateTask{.h = h.const_data_ptr(), .count = output.numel(), .output = output.mutable_data_ptr()},
      element_of(h, "clamped_gate"));
  return output;
}

template <typename Launch>
Tensor clamped_gate_backward(const Launch& launch, const Tensor& given_grad, const Tensor& given) {
  const Tensor grad = given_grad.contiguous(), h = given.contiguous();
  require_alike(grad, h, "clamped_gate_backward");
  require_numbers(h, 2 * grad.numel(), "clamped_gate_backward: h");
  Tensor grad_h = at::empty_like(h);
  launch(ClampedGateTask{.h = h.const_data_ptr(),
                         .count = grad.numel(),
                         .grad = grad.const_data_ptr(),
                         .grad_h = grad_h.mutable_data_ptr()},
         element_of(h, "clamped_gate_backward"));
  return grad_h;
}

}  // namespace hyperion::kernels::cuda
