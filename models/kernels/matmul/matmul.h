// Matrix products in the compute dtype: on CPUs with AVX-512 by kernels of our own, which widen bf16 where
// the processor multiplies pairs slower than fp32 (processor::has_fast_bf16_pairs()), else by libtorch. On
// CPUs without bf16 instructions libtorch multiplies bf16 element by element (measured: 1-6 GFLOP/s against
// 40-190 in fp32), so there the operands are widened, multiplied in fp32 and the result is rounded once. That
// is also what the bf16 hardware paths compute: fp32 accumulation, one rounding.
#pragma once

#include <ATen/core/Tensor.h>

namespace hyperion::kernels {

// a [m, k] times b [k, n] -> [m, n] in the operands' dtype; views with any strides are accepted.
at::Tensor matmul(const at::Tensor& a, const at::Tensor& b);
// The same into `out`, [m, n] of their dtype.
void matmul_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

// Sums that are kept in fp32 (or in the operands' dtype, where that is `out`): on a GPU as products
// accumulate them, elsewhere rounded to the operands' dtype first.
at::Tensor matmul(const at::Tensor& a, const at::Tensor& b, at::ScalarType out);
// sum += a times b, in sum's dtype, as above.
void add_matmul(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

// Whether this process widens bf16 operands of libtorch's products on the CPU (see above).
bool widens_bf16();

namespace cpu {

// Whether ours take a [m, k] and b [k, n]: fp32 or bf16 on a CPU with AVX-512, with neighbours in rows or in
// columns, and enough of them that packing pays. Not where the processor multiplies tiles (AMX): libtorch's
// products use them.
bool takes_matmul(const at::Tensor& a, const at::Tensor& b);

// Then a times b -> [m, n] in their dtype; sums in fp32, bf16 is rounded once. The bits do not depend on the
// number of threads.
using Matmul = at::Tensor(const at::Tensor& a, const at::Tensor& b);
Matmul matmul;

}  // namespace cpu

}  // namespace hyperion::kernels
