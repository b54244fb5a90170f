// MXFP8: e4m3 numbers in blocks of 32 neighbours that share a scale, a power of two. The bits are those of
// torchao 0.18's MX linears (mx_tensor.py); tests/goldens/float8/mx.safetensors has them.
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

// Casts x [m, n] to e4m3, one copy in the layout of Copies for each scaling that is given:
//   kRowBlock     blocks along a row; n must be a multiple of 32; scale [m, n / 32]
//   kColumnBlock  blocks along a column; m is padded with zeros to a multiple of 32; scale [m / 32, n]
// Scales are kE8m0. With a the largest magnitude of a block, its scale is
//   2^(floor(log2(a)) - 8), so that numbers above 448 / 256 of it saturate, or,
//   2^ceil(log2(a / 448)) if the scaling rounds up.
// On a GPU one kernel reads x once (models/float8/cuda).
Operands cast_blocks(const at::Tensor& x, const std::optional<Scaling>& rows,
                     const std::optional<Scaling>& columns);

// Returns values * scale in `dtype`, in the layout of the values. It is exact, except for numbers that are
// too small for `dtype`.
at::Tensor dequantize_blocks(const Quantized& x, at::ScalarType dtype);

// Converts scales [rows, blocks] to cuBLAS's layout, 1-D: tiles of 128 x 4, the last ones padded with zeros.
// The product sums along the blocks.
at::Tensor scales_for_cublas(const at::Tensor& scale);

namespace plain {
Operands cast_blocks(const at::Tensor& x, const std::optional<Scaling>& rows,
                     const std::optional<Scaling>& columns);
}

}  // namespace hyperion::float8
