// The product of two quantized matrices, on FP8 hardware or as its exact definition.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/float8/quantize.h"

namespace hyperion::float8 {

enum class Gemm {
  // at::_scaled_mm: a GPU's tensor cores (from SM89 on; blocks: SM100), a CPU's kernel (no blocks)
  kNative,
  // Dequantize, multiply in fp32 (blocks: in the result's dtype), round once: what the hardware does
  kEmulated
};

// a [m, k] times b [k, n] -> [m, n] in `out`. Scales: 0-dim, or a's [m, 1] and b's [1, n], or of blocks along
// k (kE8m0; emulated, these are multiplied in `out`). Not both in e5m2.
//
// kNative wants what Hopper wants, on every device: a row-major, b column-major, k and n multiples of 16;
// Error(kBug) otherwise. fast_accumulate: Hopper's, with fewer bits between its partial sums. Without it, or
// beside a 0-dim scale, a vector of scales is applied to the product after its rounding to bf16, as torchao
// does: the row-wise kernel knows fast accumulation and two vectors alone.
at::Tensor scaled_matmul(const Quantized& a, const Quantized& b, at::ScalarType out, bool fast_accumulate,
                         Gemm gemm);

// product [m, n] in bf16, times row (0-dim or [m, 1]), times column (0-dim or [1, n]), rounded after each; in
// place. On a GPU, where n must be a multiple of 8, in one pass (models/float8/cuda).
at::Tensor& rescale_in_place(at::Tensor& product, const at::Tensor& row, const at::Tensor& column);

}  // namespace hyperion::float8
