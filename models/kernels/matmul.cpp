#include "models/kernels/matmul.h"

#include <ATen/ops/mm.h>

#include "models/kernels/cpu/matmul.h"

namespace hyperion::kernels {

bool widens_bf16() {
  static const bool widen = !__builtin_cpu_supports("avx512bf16");
  return widen;
}

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b) {
  if (cpu::takes_matmul(a, b)) return cpu::matmul(a, b);
  if (a.is_cpu() && a.scalar_type() == at::kBFloat16 && widens_bf16())
    return at::mm(a.to(at::kFloat), b.to(at::kFloat)).to(at::kBFloat16);
  return at::mm(a, b);
}

}  // namespace hyperion::kernels
