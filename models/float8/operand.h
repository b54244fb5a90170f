// A matrix that several products read.
#pragma once

#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>

#include "models/float8/quantize.h"

namespace hyperion::models {

// Each FP8 copy is made when the first product needs it (models/float8/linear_matmuls.h), and read by all.
struct Operand {
  explicit Operand(at::Tensor matrix) : values(std::move(matrix)), dtype(values.scalar_type()) {}
  // One that was gathered in FP8, with one scale for all of it.
  Operand(float8::Quantized gathered, at::ScalarType dtype) : dtype(dtype), rows(std::move(gathered)) {}
  // One of which only the column-major copy was kept.
  static Operand of_columns(float8::Quantized columns, at::ScalarType dtype) {
    Operand operand(at::Tensor(), dtype);
    operand.columns = std::move(columns);
    return operand;
  }

  // Rows first to first + count of it as an operand of its own, which shares what is there.
  Operand part(int64_t first, int64_t count) const {
    const auto cut = [&](const at::Tensor& all) { return all.narrow(0, first, count); };
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

  // Of this operand what is kept for the weight gradients that read it: the column-major copy where it was
  // made, else the values, else the copy that was gathered.
  Operand for_weight_gradients() && {
    if (columns.values.defined()) return of_columns(std::move(columns), dtype);
    if (values.defined()) return Operand(std::move(values));
    return Operand(std::move(rows), dtype);
  }

  at::Tensor values;     // [m, n] in the compute dtype; undefined for one that was gathered in FP8
  at::ScalarType dtype;  // the compute dtype
  float8::Quantized rows{}, columns{};  // laid out as float8::Copies; without values: not made yet
  // Whether its column-major copy, which only backward reads, is made with the row-major one, to be kept
  // instead of `values`.
  bool makes_columns = false;
  // Of a matrix that is multiplied in parts: no copy by columns is made of a part, and FP8 products of all
  // parts count once, with the first rows.
  bool is_part = false, is_first = true;

 private:
  Operand(at::Tensor matrix, at::ScalarType dtype) : values(std::move(matrix)), dtype(dtype) {}
};

}  // namespace hyperion::models
