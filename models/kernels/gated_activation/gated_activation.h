// The elementwise part of a gated feed-forward, act(gate) * up (Shazeer, arXiv 2002.05202). It rounds to the
// input's dtype after act and after the product, like the two operations of torchtitan.
#pragma once

#include "models/args/activation.h"
#include "models/kernels/kernel.h"

namespace hyperion::kernels {

// gate and up are [..., n] of one dtype. They may be the halves of one tensor [..., 2 n].
using GatedActivation = at::Tensor(const at::Tensor& gate, const at::Tensor& up,
                                   models::Activation activation);
// Returns the gradients of gate and up. They are the halves of one tensor [..., 2 n] if gate and up are, and
// always from the fused GPU kernel.
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
