// Sorts rows of tokens by expert, and gathers and sums rows in that order
// (models/parts/experts/exchange/dispatch.h).
#pragma once

#include "models/kernels/kernel.h"

namespace hyperion::kernels {

struct RowOrder {
  at::Tensor assignments, tokens;  // int32 [rows]: the assignment and the token of each row
  at::Tensor rows;                 // int32 [assignments]: the row of each assignment
  at::Tensor expert_rows;          // int64 [experts]: the number of assignments of each expert
  at::Tensor ends,
      padding;  // see PaddedGroups; undefined without padding. Padding rows have arbitrary assignments.
};
// Sorts the assignments of choices, int32 [tokens, top_k], by expert; the sort is stable. unit: groups are
// padded to multiples of it; 0: no padding.
using OrderRows = RowOrder(const at::Tensor& choices, int64_t experts, int64_t unit);

// Gathers rows[r] = x[token of row r], multiplied by the weight of its assignment if `weights` [assignments]
// is defined, and rounded once. Padding rows are zeros. It does not read order.expert_rows.
using GatherRows = at::Tensor(const at::Tensor& x, const RowOrder& order, const at::Tensor& weights);
// Sums for each token the rows of its assignments, multiplied by `weights` [tokens, top_k] if defined, and
// adds `added` last if defined. The sum is in opmath_dtype(), rounded once.
using SumRows = at::Tensor(const at::Tensor& rows, const at::Tensor& row_of_assignment,
                           const at::Tensor& weights, const at::Tensor& added, int64_t top_k);
// Returns for each assignment the dot product of its rows in a and b, in opmath_dtype(): [assignments].
using ProductsOfRows = at::Tensor(const at::Tensor& a, const at::Tensor& b,
                                  const at::Tensor& row_of_assignment);
// Returns the rows of a and of b multiplied by the weights [assignments] of their assignments, rounded once,
// and the result of ProductsOfRows. Padding rows are zeros, even if a, b or the weights are not finite there.
struct WeightedRows {
  at::Tensor a, b, products;
};
using WeightRows = WeightedRows(const at::Tensor& a, const at::Tensor& b, const RowOrder& order,
                                const at::Tensor& weights);

inline void append(Values& values, const RowOrder& x) {
  for (const at::Tensor* t : {&x.assignments, &x.tokens, &x.rows, &x.expert_rows, &x.ends, &x.padding})
    append(values, *t);
}
inline void append(Values& values, const WeightedRows& x) {
  for (const at::Tensor* t : {&x.a, &x.b, &x.products}) append(values, *t);
}

namespace plain {
OrderRows order_rows;
GatherRows gather_rows;
SumRows sum_rows;
ProductsOfRows products_of_rows;
WeightRows weight_rows;
}  // namespace plain

namespace cpu {
OrderRows order_rows;
GatherRows gather_rows;
SumRows sum_rows;
ProductsOfRows products_of_rows;
WeightRows weight_rows;
}  // namespace cpu

}  // namespace hyperion::kernels
