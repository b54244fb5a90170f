#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sigmoid.h>

#include "models/kernels/clamped_gate/clamped_gate.h"
#include "models/kernels/common/dtype.h"

namespace hyperion::kernels::plain {
namespace {

using at::Tensor;

Tensor interleaved_half(const Tensor& h, int64_t which) {
  return h.slice(-1, which, std::nullopt, 2);
}

}  // namespace

Tensor clamped_gate(const Tensor& h) {
  const Tensor wide = h.to(opmath_dtype(h));
  const Tensor gate = interleaved_half(wide, 0).clamp_max(kGateLimit),
               up = interleaved_half(wide, 1).clamp(-kGateLimit, kGateLimit);
  return (gate * at::sigmoid(gate * kGateSlope) * (up + 1)).to(h.scalar_type());
}

Tensor clamped_gate_backward(const Tensor& given_grad, const Tensor& h) {
  const Tensor wide = h.to(opmath_dtype(h)), grad = given_grad.to(opmath_dtype(h));
  const Tensor of_gate = interleaved_half(wide, 0), of_up = interleaved_half(wide, 1);
  const Tensor gate = of_gate.clamp_max(kGateLimit), up = of_up.clamp(-kGateLimit, kGateLimit);
  const Tensor s = at::sigmoid(gate * kGateSlope);
  const Tensor out = at::empty_like(h);
  interleaved_half(out, 0).copy_(
      (grad * (up + 1) * (s + gate * kGateSlope * s * (1 - s))).masked_fill_(of_gate > kGateLimit, 0));
  interleaved_half(out, 1).copy_((grad * (gate * s)).masked_fill_(of_up.abs() > kGateLimit, 0));
  return out;
}

}  // namespace hyperion::kernels::plain
