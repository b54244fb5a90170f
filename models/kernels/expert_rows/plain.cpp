#include <limits>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>

#include "models/kernels/common/dtype.h"
#include "models/kernels/expert_rows/expert_rows.h"
#include "models/kernels/matmul/grouped.h"

namespace hyperion::kernels::plain {
namespace {

using at::Tensor;

Tensor with_zeros_in_padding(Tensor rows, const RowOrder& order) {
  if (order.padding.defined()) rows.index_fill_(0, order.padding, 0);
  return rows;
}

// Each row times the weight of its assignment, rounded once.
Tensor times_weights(const Tensor& rows, const RowOrder& order, const Tensor& weights) {
  const Tensor factors = weights.index_select(0, order.assignments).unsqueeze(1);
  Tensor made = rows.mul(factors).to(rows.scalar_type());  // multiplied in the factors' dtype
  // The product is first: rows of the padding have the weight of assignment 0, which may be no finite number.
  return with_zeros_in_padding(std::move(made), order);
}

}  // namespace

RowOrder order_rows(const Tensor& choices, int64_t experts, int64_t unit) {
  const Tensor flat = choices.flatten().to(at::kLong);
  const int64_t assignments = flat.numel();
  RowOrder order;
  order.expert_rows = at::zeros({experts}, flat.options()).scatter_add_(0, flat, at::ones_like(flat));
  // A radix sort takes a fourth of the passes for keys of 16 bits.
  const auto dtype = experts <= std::numeric_limits<int16_t>::max() ? at::kShort : flat.scalar_type();
  const auto [keys, sorted] = at::sort(flat.to(dtype), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  Tensor row = at::arange(assignments, flat.options());
  if (unit == 0) {
    order.assignments = sorted;
  } else {
    const PaddedGroups groups = pad_groups(order.expert_rows, assignments, unit);
    row.add_(groups.shift.index_select(0, keys.to(flat.scalar_type())));
    order.assignments = at::zeros({groups.rows}, flat.options()).index_copy_(0, row, sorted);
    order.ends = groups.ends;
    order.padding = groups.padding;
  }
  order.tokens = order.assignments.floor_divide(choices.size(1));
  order.rows = at::empty_like(flat).index_copy_(0, sorted, row);
  for (Tensor* const numbers : {&order.assignments, &order.tokens, &order.rows})
    *numbers = numbers->to(at::kInt);
  return order;
}

Tensor gather_rows(const Tensor& x, const RowOrder& order, const Tensor& weights) {
  Tensor rows = x.index_select(0, order.tokens);
  return weights.defined() ? times_weights(rows, order, weights)
                           : with_zeros_in_padding(std::move(rows), order);
}

Tensor sum_rows(const Tensor& rows, const Tensor& row_of_assignment, const Tensor& weights,
                const Tensor& added, int64_t top_k) {
  // Many choices take as few launches as one.
  Tensor terms = rows.index_select(0, row_of_assignment).view({-1, top_k, rows.size(1)});
  if (weights.defined()) terms = terms.mul(weights.unsqueeze(2));  // in the dtype of sums
  Tensor sum = terms.sum(1, /*keepdim=*/false, added.defined() ? opmath_dtype(rows) : terms.scalar_type());
  if (added.defined()) sum.add_(added);
  return sum.to(rows.scalar_type());
}

Tensor products_of_rows(const Tensor& a, const Tensor& b, const Tensor& row_of_assignment) {
  return a.mul(b.to(opmath_dtype(a))).sum(1).index_select(0, row_of_assignment);
}

WeightedRows weight_rows(const Tensor& a, const Tensor& b, const RowOrder& order, const Tensor& weights) {
  return {times_weights(a, order, weights), times_weights(b, order, weights),
          products_of_rows(a, b, order.rows)};
}

}  // namespace hyperion::kernels::plain
