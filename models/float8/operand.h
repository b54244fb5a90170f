// Operand is a matrix that several products read, with its FP8 copies.
#pragma once

#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>

#include "models/float8/quantize.h"

namespace hyperion::models {

// The first product that needs an FP8 copy makes it (models/float8/linear_matmuls.h); later products share
// it.
struct Operand {
  explicit Operand(at::Tensor matrix) : values(std::move(matrix)), dtype(values.scalar_type()) {}
  // An operand that was all-gathered in FP8 with one scale.
  Operand(float8::Quantized gathered, at::ScalarType dtype) : dtype(dtype), rows(std::move(gathered)) {}
  // An operand of which only the column-major copy exists.
  static Operand from_columns(float8::Quantized columns, at::ScalarType dtype) {
    Operand operand(at::Tensor(), dtype);
    operand.columns = std::move(columns);
    return operand;
  }

  // Returns rows [first, first + count) as an operand that shares the memory of this one.
  Operand part(int64_t first, int64_t count) const {
    const auto cut = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
    Operand part(values.defined() ? cut(values) : values, dtype);
    part.rows = rows;
    if (rows.values.defined()) part.rows.values = cut(rows.values);
    if (rows.scale.defined() && rows.scale.dim() > 0) {  // one for each row
      part.rows.scale = cut(rows.scale);
      if (rows.inverse.defined()) part.rows.inverse = cut(rows.inverse);
    }
    part.is_part = true;
    part.is_first = first == 0;
    return part;
  }

  int64_t row_count() const { return (values.defined() ? values : rows.values).size(0); }

  // Returns the operand reduced to what wgrad reads: the column-major copy if it exists, else the values,
  // else the copy that was all-gathered.
  Operand for_weight_gradients() && {
    if (columns.values.defined()) return from_columns(std::move(columns), dtype);
    if (values.defined()) return Operand(std::move(values));
    return Operand(std::move(rows), dtype);
  }

  at::Tensor values;     // [m, n] in the compute dtype; undefined if it was all-gathered in FP8
  at::ScalarType dtype;  // the compute dtype
  float8::Quantized rows{}, columns{};  // in the layouts of float8::Copies; undefined until they are made
  // True if the cast of `rows` also makes `columns`, which only wgrad reads and which is kept instead of
  // `values`.
  bool makes_columns = false;
  // Set for the parts of an operand that is multiplied in parts. A part has no column-major copy. Counters
  // count FP8 products of all parts once, with the first.
  bool is_part = false, is_first = true;

 private:
  Operand(at::Tensor matrix, at::ScalarType dtype) : values(std::move(matrix)), dtype(dtype) {}
};

}  // namespace hyperion::models
