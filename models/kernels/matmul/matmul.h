// Matrix products in the compute dtype, by libtorch, or on CPUs with AVX-512 by our own kernels. Ours widen
// bf16 if the processor multiplies pairs slower than fp32 (processor::has_fast_bf16_pairs()). On CPUs without
// bf16 instructions libtorch multiplies bf16 element by element (measured: 1-6 GFLOP/s against 40-190 in
// fp32), so the operands are widened, multiplied in fp32, and the result is rounded once. The bf16 hardware
// computes the same: fp32 accumulation, one rounding.
#pragma once

#include <ATen/core/Tensor.h>

namespace hyperion::kernels {

// Multiplies a [m, k] by b [k, n], with any strides -> [m, n] in the operands' dtype.
at::Tensor matmul(const at::Tensor& a, const at::Tensor& b);
// Returns the product plus bias [n]. A GPU adds it in the product's launch, before the one rounding; a CPU
// adds it to the rounded product.
at::Tensor matmul_add_bias(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias);
// Writes the product to `out`, [m, n] of the operands' dtype.
void matmul_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

// Returns the product in `out`, which is fp32 or the operands' dtype. A GPU does not round fp32 results; a
// CPU rounds them to the operands' dtype first.
at::Tensor matmul(const at::Tensor& a, const at::Tensor& b, at::ScalarType out);
// Adds the product to `sum`, in its dtype, which is as `out` above.
void add_matmul(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

// Returns whether this process widens bf16 operands of libtorch's CPU products (see above).
bool widens_bf16();

namespace cpu {

// Returns whether our kernels take a [m, k] and b [k, n]: fp32 or bf16 on a CPU with AVX-512, contiguous in
// rows or in columns, and large enough that packing pays. Not on processors with AMX, which libtorch's
// products use.
bool takes_matmul(const at::Tensor& a, const at::Tensor& b);

// Multiplies a by b if takes_matmul() -> [m, n] in their dtype. Sums are in fp32; bf16 is rounded once. The
// bits do not depend on the number of threads.
using Matmul = at::Tensor(const at::Tensor& a, const at::Tensor& b);
Matmul matmul;

}  // namespace cpu

}  // namespace hyperion::kernels
