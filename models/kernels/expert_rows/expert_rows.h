// Rows of tokens in the order of their experts, and what is gathered and summed in that order:
// models/parts/experts/dispatch.h.
#pragma once

#include "models/kernels/kernel.h"

namespace hyperion::kernels {

struct RowOrder {
  at::Tensor slots, tokens;  // int64 [rows]: the slot of each row, and its token
  at::Tensor rows;           // int64 [slots]: the row of each slot
  at::Tensor expert_rows;    // int64 [experts]: slots of each expert
  at::Tensor ends, padding;  // of padded groups (matmul/grouped.h), or undefined; slots of padding are any
};
// choices: int64 [tokens, top_k], the experts of each token's slots. The slots of one expert stay in their
// order. unit: what groups are padded to multiples of; 0: they are not.
using OrderRows = RowOrder(const at::Tensor& choices, int64_t experts, int64_t unit);

// rows[r] = x[token of r], times the weight of its slot where `weights`, [slots], are defined; rounded once.
// Rows of the padding are zeros. Of `order` no counts are needed.
using GatherRows = at::Tensor(const at::Tensor& x, const RowOrder& order, const at::Tensor& weights);
// For each token the sum of its slots' rows, times `weights`, [tokens, top_k], where they are defined, and of
// `added` where that is, last: in opmath_dtype(), rounded once.
using SumRows = at::Tensor(const at::Tensor& rows, const at::Tensor& row_of_slot, const at::Tensor& weights,
                           const at::Tensor& added, int64_t top_k);
// Of each slot the sum over its row of a times b, in opmath_dtype(): [slots].
using ProductsOfRows = at::Tensor(const at::Tensor& a, const at::Tensor& b, const at::Tensor& row_of_slot);
// Rows a and b times the weights of their slots, [slots], rounded once, zeros in the padding whatever a, b
// and the weights are, and ProductsOfRows.
struct WeightedRows {
  at::Tensor a, b, products;
};
using WeightRows = WeightedRows(const at::Tensor& a, const at::Tensor& b, const RowOrder& order,
                                const at::Tensor& weights);

inline void append(Values& values, const RowOrder& x) {
  for (const at::Tensor* t : {&x.slots, &x.tokens, &x.rows, &x.expert_rows, &x.ends, &x.padding})
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
