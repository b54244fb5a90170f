// The pointwise part of a gated feed-forward, act(gate) * up (Shazeer, arXiv 2002.05202). Two roundings to
// the input's dtype, as the two operations of the peer have: after act and after the product.
#pragma once

#include "models/args/activation.h"
#include "models/kernels/kernel.h"

namespace hyperion::kernels {

// gate, up [..., n]: same shape and dtype; both may be halves of one tensor [..., 2 n].
using GatedActivation = at::Tensor(const at::Tensor& gate, const at::Tensor& up,
                                   models::Activation activation);
// Gradients of gate and up; the halves of one tensor [..., 2 n] where those are, and from a GPU's fused
// kernel.
using GatedActivationBackward = std::pair<at::Tensor, at::Tensor>(const at::Tensor& grad,
                                                                  const at::Tensor& gate,
                                                                  const at::Tensor& up,
                                                                  models::Activation activation);

namespace plain {
GatedActivation gated_activation;
GatedActivationBackward gated_activation_backward;
}  // namespace plain

namespace cpu {
GatedActivation gated_activation;
GatedActivationBackward gated_activation_backward;
}  // namespace cpu

}  // namespace hyperion::kernels
