// The dtypes in which kernels store and compute.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

namespace hyperion::kernels {

// Returns the dtype of arithmetic and sums: fp64 for fp64, else fp32.
inline at::ScalarType opmath_dtype(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Returns whether fused forms take the dtype: fp32 and bf16.
inline bool is_fused_dtype(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16;
}
inline bool is_fused_dtype(const at::Tensor& t) {
  return is_fused_dtype(t.scalar_type());
}

// Calls f with a value of the tensor's element type, float or c10::BFloat16.
template <typename F>
decltype(auto) with_element_type(const at::Tensor& t, F&& f) {
  if (t.scalar_type() == at::kBFloat16) return std::forward<F>(f)(c10::BFloat16());
  return std::forward<F>(f)(float());
}

}  // namespace hyperion::kernels
