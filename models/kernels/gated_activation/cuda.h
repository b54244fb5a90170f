// Calls gated_activation/cuda.cuh with tensors.
#pragma once

#include <vector>

#include <ATen/ops/empty.h>

#include "models/kernels/common/tensors.h"
#include "models/kernels/gated_activation/gated_activation.h"
#include "models/kernels/gated_activation/task.h"

namespace hyperion::kernels::cuda {

// A tensor as rows with a constant stride; copies it if it has none.
struct Rows {
  explicit Rows(const Tensor& given) : x(given) {
    bool even = x.stride(-1) == 1;
    for (int64_t d = 0; d + 2 < x.dim(); ++d)
      even = even && (x.size(d) == 1 || x.stride(d) == x.stride(d + 1) * x.size(d + 1));
    if (!even) x = x.contiguous();
    stride = x.dim() > 1 ? x.stride(-2) : x.size(-1);
    count = x.size(-1) == 0 ? 0 : x.numel() / x.size(-1);
  }
  Tensor x;
  int64_t stride = 0, count = 0;
};

template <typename Launch>
Tensor gated_activation(const Launch& launch, const Tensor& given_gate, const Tensor& given_up,
                        models::Activation activation) {
  require_alike(given_up, given_gate, "gated_activation");
  TORCH_CHECK(given_gate.sizes() == given_up.sizes(), "gated_activation: gate ", given_gate.sizes(),
              " and up ", given_up.sizes());
  const Rows gate(given_gate), up(given_up);
  Tensor output = at::empty(given_gate.sizes(), given_gate.options());
  const GatedActivationTask task{.activation = activation,
                                 .gate = gate.x.const_data_ptr(),
                                 .up = up.x.const_data_ptr(),
                                 .gate_stride = gate.stride,
                                 .up_stride = up.stride,
                                 .rows = gate.count,
                                 .n = output.size(-1),
                                 .output = output.mutable_data_ptr()};
  launch(task, element_of(output, "gated_activation"));
  return output;
}

// Returns the halves of one tensor.
template <typename Launch>
std::pair<Tensor, Tensor> gated_activation_backward(const Launch& launch, const Tensor& given_grad,
                                                    const Tensor& given_gate, const Tensor& given_up,
                                                    models::Activation activation) {
  require_alike(given_up, given_gate, "gated_activation_backward");
  require_alike(given_grad, given_gate, "gated_activation_backward");
  require_numbers(given_up, given_gate.numel(), "gated_activation_backward: up");
  require_numbers(given_grad, given_gate.numel(), "gated_activation_backward: grad");
  const Rows grad(given_grad), gate(given_gate), up(given_up);
  std::vector<int64_t> shape = given_gate.sizes().vec();
  const int64_t n = shape.back();
  shape.back() = 2 * n;
  Tensor packed = at::empty(shape, given_gate.options());
  const GatedActivationTask task{.activation = activation,
                                 .gate = gate.x.const_data_ptr(),
                                 .up = up.x.const_data_ptr(),
                                 .gate_stride = gate.stride,
                                 .up_stride = up.stride,
                                 .rows = gate.count,
                                 .n = n,
                                 .grad = grad.x.const_data_ptr(),
                                 .grad_stride = grad.stride,
                                 .packed = packed.mutable_data_ptr()};
  launch(task, element_of(packed, "gated_activation_backward"));
  return {packed.narrow(-1, 0, n), packed.narrow(-1, n, n)};
}

}  // namespace hyperion::kernels::cuda
