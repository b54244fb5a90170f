// Quantization to FP8 and back: amax, scale, saturating cast. Formulas and their order of rounding are those
// of torchao 0.18 (float8_utils.py), so that results have the same bits; tests/goldens/float8 has them.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "base/exchange.h"

namespace hyperion::float8 {

inline constexpr at::ScalarType kE4m3 = at::kFloat8_e4m3fn;  // +-448, no infinities: weights, activations
inline constexpr at::ScalarType kE5m2 = at::kFloat8_e5m2;    // +-57344: gradients of tensorwise recipes

// The numbers of a matrix [m, n] that share one scale.
enum class Granularity {
  kTensor,  // all: scale is 0-dim
  kRow,     // a row: scale [m, 1]
  kColumn,  // a column: scale [1, n]
  // 32 neighbours in a row, or in a column (models/float8/blocks.h)
  kRowBlock,
  kColumnBlock
};

struct Scaling {
  at::ScalarType dtype = kE4m3;
  Granularity granularity = Granularity::kTensor;
  bool power_of_two = false;
  bool rounds_up = false;  // for blocks, see cast_blocks()

  bool operator==(const Scaling&) const = default;
};

struct Quantized {
  at::Tensor values;     // [m, n] in an FP8 dtype: round(x * scale)
  at::Tensor scale;      // fp32, see Granularity
  at::Tensor inverse{};  // 1 / scale, which products read; undefined until it is made
};

// Says that x is a shard of a matrix that `group` shards along `dim`; null: x is not sharded. Scales then
// cover the unsharded matrix, so bits do not depend on the number of ranks.
struct PartOf {
  Exchange* group = nullptr;
  int dim = 0;
};

// Returns the largest magnitude for each scale; NaN if there is a NaN, 0 for an empty x. The result has x's
// dtype. If a scale covers numbers of several ranks, it is fp32 and the call is collective over the group.
at::Tensor amax(const at::Tensor& x, Granularity granularity, const PartOf& part = {});

// Returns the amax of each matrix, not sharded and all of one dtype: [n] on `device`. A few kernels serve all
// matrices on a GPU.
at::Tensor amaxes(const std::vector<at::Tensor>& matrices, at::Device device);

struct Scales {
  at::Tensor scale, inverse;  // fp32, in the shape of the amax; inverse = 1 / scale
};

// Returns scale = the largest FP8 number / max(amax, 1e-12), computed in double and rounded to fp32; with
// power_of_two exp2(floor(log2(scale))), in fp32. The scale of amax 0 is finite, that of an infinite amax is
// 0. On a GPU one kernel makes both (models/float8/cuda).
Scales scales_of(const at::Tensor& amax, at::ScalarType dtype, bool power_of_two);

constexpr double largest_of(at::ScalarType dtype) {  // returns the largest FP8 number
  return dtype == kE5m2 ? 57344.0 : 448.0;
}

// Returns fp32(x) * scale, clamped to the dtype's range (libtorch's cast does not saturate) and rounded to
// nearest even. NaN stays NaN.
at::Tensor saturating_cast(const at::Tensor& x, const at::Tensor& scale, at::ScalarType dtype);

Quantized quantize(const at::Tensor& x, const Scaling& scaling, const PartOf& part = {});

// Returns values / scale in fp32, by a division.
at::Tensor dequantize(const Quantized& x);

}  // namespace hyperion::float8
