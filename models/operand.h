// A matrix that several products read.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

#include "models/float8/quantize.h"

namespace hyperion::models {

// Each FP8 copy is made when the first product needs it (models/float8/linear_matmuls.h), and read by all.
struct Operand {
  explicit Operand(at::Tensor matrix) : values(std::move(matrix)), dtype(values.scalar_type()) {}
  // One that was gathered in FP8, with one scale for all of it.
  Operand(float8::Quantized gathered, at::ScalarType dtype) : dtype(dtype), rows(std::move(gathered)) {}

  at::Tensor values;     // [m, n] in the compute dtype; undefined for one that was gathered in FP8
  at::ScalarType dtype;  // the compute dtype
  float8::Quantized rows{}, columns{};  // laid out as float8::Copies; without values: not made yet
};

}  // namespace hyperion::models
