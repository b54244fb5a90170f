#include "models/kernels/matmul/matmul.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "base/processor.h"
#include "models/kernels/kernels.h"

namespace hyperion::kernels {

bool widens_bf16() {
  static const bool widen = !processor::has_avx512_bf16();
  return widen;
}

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b) {
  if (table().cpu_matmul != nullptr && cpu::takes_matmul(a, b)) return table().cpu_matmul(a, b);
  if (a.is_cpu() && a.scalar_type() == at::kBFloat16 && widens_bf16())
    return at::mm(a.to(at::kFloat), b.to(at::kFloat)).to(at::kBFloat16);
  return at::mm(a, b);
}

at::Tensor matmul_add_bias(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  return a.is_cuda() ? at::addmm(bias, a, b) : kernels::matmul(a, b).add_(bias);
}

void matmul_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  const bool ours = table().cpu_matmul != nullptr && cpu::takes_matmul(a, b);
  at::Tensor to = out;
  if (ours || (a.is_cpu() && a.scalar_type() == at::kBFloat16 && widens_bf16()))
    to.copy_(kernels::matmul(a, b));
  else
    at::mm_out(to, a, b);
}

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b, at::ScalarType out) {
  return a.is_cuda() && a.scalar_type() != out ? at::mm(a, b, out) : kernels::matmul(a, b).to(out);
}

void add_matmul(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor in_place = sum;
  if (a.is_cuda())  // whose addmm takes, from libtorch 2.11 on, a sum of another dtype than the factors'
    at::addmm_out(in_place, in_place, a, b, in_place.scalar_type());
  else
    in_place.add_(kernels::matmul(a, b));
}

}  // namespace hyperion::kernels
