// Which implementation a kernel of this folder runs, by device and dtype and by what the process was told;
// and in which type it computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>

namespace hyperion::kernels {

// kAuto: fused kernels where there are any for the device and the dtype. kPlain: the plain forms, everywhere.
enum class KernelChoice { kAuto, kPlain };
// For the whole process; kAuto until it is called. Not while kernels run.
void choose_kernels(KernelChoice choice);
KernelChoice chosen_kernels();

// The dtype of arithmetic and sums: fp64 stays, everything else is widened to fp32.
inline at::ScalarType opmath_dtype(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// fp32 and bf16 have fused kernels.
inline bool is_fused_dtype(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16;
}

// Whether t is one that the fused kernels of a CPU take.
inline bool has_fused(const at::Tensor& t) {
  return t.is_cpu() && is_fused_dtype(t) && chosen_kernels() == KernelChoice::kAuto;
}

// Whether t is one that the fused kernels of a GPU take. `why_not`: what else keeps this call from `kernel`;
// empty: nothing. On a GPU a reason is logged, each once for a process.
bool has_fused_on_gpu(const char* kernel, const at::Tensor& t, const std::string& why_not = {});

// Calls f with a value of the tensor's element type, float or c10::BFloat16.
template <typename F>
decltype(auto) with_element_type(const at::Tensor& t, F&& f) {
  if (t.scalar_type() == at::kBFloat16) return std::forward<F>(f)(c10::BFloat16());
  return std::forward<F>(f)(float());
}

}  // namespace hyperion::kernels
