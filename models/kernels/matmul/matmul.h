// Matrix products in the compute dtype: on CPUs with AVX-512 and bf16 products by kernels of our own
// (models/kernels/matmul/cpu.h), else by libtorch. On CPUs without bf16 instructions libtorch multiplies bf16
// element by element (measured: 1-6 GFLOP/s against 40-190 in fp32), so there the operands are widened,
// multiplied in fp32 and the result is rounded once. That is also what the bf16 hardware paths compute: fp32
// accumulation, one rounding.
#pragma once

#include <ATen/core/Tensor.h>

namespace hyperion::kernels {

// a [m, k] times b [k, n] -> [m, n] in the operands' dtype; views with any strides are accepted.
at::Tensor matmul(const at::Tensor& a, const at::Tensor& b);

// Sums that are kept in fp32 (or in the operands' dtype, where that is `out`): on a GPU as products
// accumulate them, elsewhere rounded to the operands' dtype first.
at::Tensor matmul(const at::Tensor& a, const at::Tensor& b, at::ScalarType out);
// sum += a times b, in sum's dtype, as above.
void add_matmul(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

// Whether this process widens bf16 operands on the CPU (see above).
bool widens_bf16();

}  // namespace hyperion::kernels
