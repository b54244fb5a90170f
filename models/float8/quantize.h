// Numbers to FP8 and back: amax, scale, saturating cast. Formulas and their order of rounding are torchao
// 0.18's (float8_utils.py), so that results have the same bits; tests/goldens/float8 holds them.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "base/exchange.h"

namespace hyperion::float8 {

inline constexpr at::ScalarType kE4m3 = at::kFloat8_e4m3fn;  // +-448, no infinities: weights, activations
inline constexpr at::ScalarType kE5m2 = at::kFloat8_e5m2;    // +-57344: gradients of tensorwise recipes

// What shares one scale, of a matrix [m, n].
enum class Granularity {
  kTensor,  // everything: scale is 0-dim
  kRow,     // a row: scale [m, 1]
  kColumn,  // a column: scale [1, n]
  // 32 neighbours of a row or of a column (models/float8/blocks.h)
  kRowBlock,
  kColumnBlock
};

struct Scaling {
  at::ScalarType dtype = kE4m3;
  Granularity granularity = Granularity::kTensor;
  bool power_of_two = false;
  bool rounds_up = false;  // of blocks

  bool operator==(const Scaling&) const = default;
};

struct Quantized {
  at::Tensor values;     // [m, n] in an FP8 dtype: round(x * scale)
  at::Tensor scale;      // fp32, see Granularity
  at::Tensor inverse{};  // 1 / scale, as products want it; undefined: not made yet
};

// Where x is one of the parts that `ranks` cut from a matrix along `dim` (null: x is whole), what shares a
// scale is of the matrix: its bits do not depend on the number of parts.
struct PartOf {
  Exchange* ranks = nullptr;
  int dim = 0;
};

// The largest magnitude of what shares each scale, in x's dtype (fp32 where ranks had to be asked: collective
// over them unless the granularity's scales are of indices along `dim`); NaN where there is one. An empty x
// has 0.
at::Tensor amax(const at::Tensor& x, Granularity granularity, const PartOf& part = {});

// Of whole matrices of one dtype: fp32 [n] on `device`, by a few kernels for all that are on a GPU.
at::Tensor amaxes(const std::vector<at::Tensor>& matrices, at::Device device);

struct Scales {
  at::Tensor scale, inverse;  // fp32, of amax's shape; inverse = 1 / scale
};

// The largest FP8 number / max(amax, 1e-12), in double, rounded to fp32. amax 0 gives a finite scale, an
// infinite one gives 0. power_of_two: exp2(floor(log2(scale))), in fp32.
// On a GPU one kernel makes both (models/float8/cuda).
Scales scales_of(const at::Tensor& amax, at::ScalarType dtype, bool power_of_two);

constexpr double largest_of(at::ScalarType dtype) {  // the largest FP8 number
  return dtype == kE5m2 ? 57344.0 : 448.0;
}

// fp32(x) * scale, clamped to the dtype's range (libtorch's cast does not saturate), rounded to nearest even.
// NaN stays NaN.
at::Tensor saturating_cast(const at::Tensor& x, const at::Tensor& scale, at::ScalarType dtype);

Quantized quantize(const at::Tensor& x, const Scaling& scaling, const PartOf& part = {});

// fp32: values / scale, a division.
at::Tensor dequantize(const Quantized& x);

}  // namespace hyperion::float8
