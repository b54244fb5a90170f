#include "models/kernels/largest.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/maximum.h>

namespace hyperion::kernels {

void raise_to_largest(const at::Tensor& amax, const at::Tensor& x) {
  if (x.numel() == 0) return;
  amax.copy_(at::maximum(amax, x.detach().abs().amax().to(at::kFloat)));
}

}  // namespace hyperion::kernels
