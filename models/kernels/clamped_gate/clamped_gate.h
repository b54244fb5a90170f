// The elementwise part of gpt_oss's experts. A row h of 2 n elements has gate and up interleaved: gate =
// h[0], h[2], ..., up = h[1], h[3], ... With g = min(gate, kGateLimit) and u = clamp(up, -kGateLimit,
// kGateLimit) it computes g sigmoid(kGateSlope g) (u + 1). The arithmetic is in opmath_dtype(), rounded once.
#pragma once

#include "models/kernels/common/limits.h"
#include "models/kernels/kernel.h"

namespace hyperion::kernels {

// h [..., 2 n], contiguous -> [..., n]
using ClampedGate = at::Tensor(const at::Tensor& h);
// Returns the gradient of h, contiguous, from `grad` of the result. It is zero where a clamp cuts.
using ClampedGateBackward = at::Tensor(const at::Tensor& grad, const at::Tensor& h);

namespace plain {
ClampedGate clamped_gate;
ClampedGateBackward clamped_gate_backward;
}  // namespace plain

namespace cpu {
ClampedGate clamped_gate;
ClampedGateBackward clamped_gate_backward;
}  // namespace cpu

}  // namespace hyperion::kernels
