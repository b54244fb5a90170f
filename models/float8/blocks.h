// MXFP8: e4m3 numbers in blocks of 32 neighbours with a power of two each, as torchao 0.18's MX linears make
// them (mx_tensor.py), with their bits; tests/goldens/float8/mx.safetensors holds those.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "models/float8/cast.h"
#include "models/float8/quantize.h"

namespace hyperion::float8 {

inline constexpr int64_t kBlock = 32;
inline constexpr at::ScalarType kE8m0 = at::kFloat8_e8m0fnu;  // 2^(bits - 127); 255 is NaN

inline bool in_blocks(Granularity granularity) {
  return granularity == Granularity::kRowBlock || granularity == Granularity::kColumnBlock;
}

// Copies of x [m, n] in e4m3, in the layouts of Copies, for each scaling that is given:
//   kRowBlock     n a multiple of 32; scale [m, n / 32], of numbers that lie side by side in a row
//   kColumnBlock  m is rounded up to a multiple of 32, by zeros; scale [m / 32, n], of numbers of a column
// Scales are kE8m0. A block's power of two is, with a the largest magnitude in it,
//   2^(floor(log2(a)) - 8)   so that numbers above 448 / 256 of it saturate, or,
//   2^ceil(log2(a / 448))    where the scaling rounds up.
// On a GPU one kernel reads x once (models/float8/cuda).
Operands cast_blocks(const at::Tensor& x, const std::optional<Scaling>& rows,
                     const std::optional<Scaling>& columns);

// In `dtype`, values times scale: exact but for numbers too small for it. The layout is that of the values.
at::Tensor dequantize_blocks(const Quantized& x, at::ScalarType dtype);

// Scales [rows, blocks] of an operand whose sums run along its blocks, as cuBLAS reads them: tiles of 128 x
// 4, the last ones filled up with zeros, 1-D.
at::Tensor scales_for_cublas(const at::Tensor& scale);

namespace plain {
Operands cast_blocks(const at::Tensor& x, const std::optional<Scaling>& rows,
                     const std::optional<Scaling>& columns);
}

}  // namespace hyperion::float8
