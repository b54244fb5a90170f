// Matrix products on a CPU by kernels of our own, for AVX-512 with bf16 products. Their bits do not depend on
// the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

namespace hyperion::kernels::cpu {

// a [m, k] and b [k, n]: fp32 or bf16 on a CPU of that kind, with neighbours in rows or in columns, and
// enough of them that packing pays. Not where the processor multiplies tiles (AMX): libtorch's products use
// them.
bool takes_matmul(const at::Tensor& a, const at::Tensor& b);

// For what takes_matmul(): a times b -> [m, n] in their dtype; sums in fp32, bf16 is rounded once.
using Matmul = at::Tensor(const at::Tensor& a, const at::Tensor& b);
Matmul matmul;

}  // namespace hyperion::kernels::cpu
