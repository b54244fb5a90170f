// SwiGLU's pointwise part, silu(gate) * up (Shazeer, arXiv 2002.05202). Two roundings to the input's dtype,
// as the two operations of the peer have: after silu and after the product.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

namespace hyperion::kernels {

// gate, up [..., n]: same shape and dtype; both may be halves of one tensor [..., 2 n].
at::Tensor swiglu_forward(const at::Tensor& gate, const at::Tensor& up);
// Gradients of gate and up; the halves of one tensor [..., 2 n] where those are, and from a GPU's fused
// kernel.
std::pair<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& grad, const at::Tensor& gate,
                                                  const at::Tensor& up);

namespace plain {
at::Tensor swiglu_forward(const at::Tensor& gate, const at::Tensor& up);
std::pair<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& grad, const at::Tensor& gate,
                                                  const at::Tensor& up);
}  // namespace plain

}  // namespace hyperion::kernels
