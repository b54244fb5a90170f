// Helpers of the cuda.h headers, which call CUDA kernels with tensors: each checks the tensors, allocates the
// results and fills the task. `launch(task, element)` runs the kernel; tests run it on CPU threads.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/kernels/common/launch.h"

namespace hyperion::kernels::cuda {

using at::Tensor;

inline Element element_of(const Tensor& x, const char* what) {
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16, what, ": ", x.scalar_type(),
              ", expected fp32 or bf16");
  return x.scalar_type() == at::kFloat ? Element::kFloat : Element::kBFloat16;
}

inline void require_alike(const Tensor& x, const Tensor& like, const char* what) {
  TORCH_CHECK(x.scalar_type() == like.scalar_type() && x.device() == like.device(), what, ": ",
              x.scalar_type(), " on ", x.device(), ", expected ", like.scalar_type(), " on ", like.device());
}

inline void require_numbers(const Tensor& x, int64_t many, const char* what) {
  TORCH_CHECK(x.numel() == many, what, ": ", x.sizes(), ", expected ", many, " numbers");
}

}  // namespace hyperion::kernels::cuda
