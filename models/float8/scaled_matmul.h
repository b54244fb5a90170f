// The product of two quantized matrices, on FP8 hardware or emulated by its exact definition.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/float8/quantize.h"

namespace hyperion::float8 {

enum class Gemm {
  // at::_scaled_mm: a GPU's tensor cores (SM89 or later; SM100 for blocks), or a CPU's kernel (no blocks)
  kNative,
  // Dequantizes, multiplies in fp32 (blocks: in the result's dtype) and rounds once, as the hardware does
  kEmulated
};

// Returns a [m, k] times b [k, n] -> [m, n] in `out`. Scales are 0-dim, or [m, 1] of a and [1, n] of b, or
// kE8m0 of blocks along k (the emulation multiplies these in `out`). At most one operand is e5m2.
//
// kNative has Hopper's requirements on every device: a row-major, b column-major, k and n multiples of 16;
// otherwise it throws Error(kBug). fast_accumulate is Hopper's, with fewer bits between partial sums. The
// row-wise kernel supports only fast accumulation with two vectors of scales. In other cases a vector of
// scales is applied to the product after its rounding to bf16, as torchao does.
at::Tensor scaled_matmul(const Quantized& a, const Quantized& b, at::ScalarType out, bool fast_accumulate,
                         Gemm gemm);

// Multiplies a bf16 product [m, n] in place by row (0-dim or [m, 1]) and then by column (0-dim or [1, n]),
// and rounds after each. On a GPU n must be a multiple of 8, and it is one pass (models/float8/cuda).
at::Tensor& rescale_in_place(at::Tensor& product, const at::Tensor& row, const at::Tensor& column);

}  // namespace hyperion::float8
