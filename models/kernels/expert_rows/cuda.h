// Calls expert_rows/cuda.cuh with tensors.
#pragma once

#include <algorithm>
#include <limits>

#include <ATen/ops/empty.h>

#include "models/kernels/common/tensors.h"
#include "models/kernels/expert_rows/expert_rows.h"
#include "models/kernels/expert_rows/task.h"
#include "models/kernels/matmul/grouped.h"

namespace hyperion::kernels::cuda {

template <typename Launch>
RowOrder order_rows(const Launch& launch, const Tensor& given, int64_t experts, int64_t unit) {
  const Tensor choices = given.contiguous();
  const int64_t assignments = choices.numel(),
                rows = unit == 0 ? assignments : padded_rows(assignments, experts, unit);
  TORCH_CHECK(rows <= std::numeric_limits<int>::max() && experts <= kMaxRowGroups, "order_rows: ", rows,
              " rows of ", experts, " experts, expected at most ", std::numeric_limits<int>::max(), " of ",
              kMaxRowGroups);
  const int64_t blocks =
      std::max<int64_t>((assignments + kAssignmentsPerBlock - 1) / kAssignmentsPerBlock, 1);
  const auto small = choices.options(), integers = small.dtype(at::kLong);
  const Tensor counts = at::empty({blocks + 1, experts}, small);
  RowOrder order = {at::empty({rows}, small),
                    at::empty({rows}, small),
                    at::empty({assignments}, small),
                    at::empty({experts}, integers),
                    {},
                    {}};
  OrderRowsTask task{.choices = choices.const_data_ptr<int32_t>(),
                     .assignment_count = assignments,
                     .row_count = rows,
                     .blocks = static_cast<int>(blocks),
                     .experts = static_cast<int>(experts),
                     .top_k = static_cast<int>(choices.size(1)),
                     .unit = static_cast<int>(unit),
                     .counts = counts.mutable_data_ptr<int>(),
                     .assignments = order.assignments.mutable_data_ptr<int32_t>(),
                     .tokens = order.tokens.mutable_data_ptr<int32_t>(),
                     .rows = order.rows.mutable_data_ptr<int32_t>(),
                     .expert_rows = order.expert_rows.mutable_data_ptr<int64_t>()};
  if (unit > 0) {
    order.ends = at::empty({experts}, small);
    order.padding = at::empty({experts * unit}, integers);
    task.ends = order.ends.mutable_data_ptr<int>();
    task.padding = order.padding.mutable_data_ptr<int64_t>();
  }
  launch(task, Element::kFloat);
  return order;
}

// Returns the data of `many` weights, or null if `weights` is undefined.
inline const float* weights_of(const Tensor& weights, int64_t many, const char* what) {
  if (!weights.defined()) return nullptr;
  require_numbers(weights, many, what);
  return weights.const_data_ptr<float>();
}

template <typename Launch>
Tensor gather_rows(const Launch& launch, const Tensor& given_x, const RowOrder& order,
                   const Tensor& given_weights) {
  const Tensor x = given_x.contiguous(),
               weights = given_weights.defined() ? given_weights.contiguous() : given_weights;
  const int64_t rows = order.tokens.numel();
  Tensor out = at::empty({rows, x.size(1)}, x.options());
  const GatherRowsTask task{.x = x.const_data_ptr(),
                            .out = out.mutable_data_ptr(),
                            .assignments = order.assignments.const_data_ptr<int32_t>(),
                            .tokens = order.tokens.const_data_ptr<int32_t>(),
                            .rows = order.rows.const_data_ptr<int32_t>(),
                            .weights = weights_of(weights, order.rows.numel(), "gather_rows: weights"),
                            .row_count = rows,
                            .n = x.size(1)};
  launch(task, element_of(x, "gather_rows"));
  return out;
}

template <typename Launch>
Tensor sum_rows(const Launch& launch, const Tensor& given_rows, const Tensor& row_of_assignment,
                const Tensor& given_weights, const Tensor& given_added, int64_t top_k) {
  const auto dense = [](const Tensor& t) { return t.defined() ? t.contiguous() : t; };
  const Tensor rows = given_rows.contiguous(), weights = dense(given_weights), added = dense(given_added);
  const int64_t tokens = row_of_assignment.numel() / top_k;
  if (added.defined()) {
    require_alike(added, rows, "sum_rows");
    require_numbers(added, tokens * rows.size(1), "sum_rows: added");
  }
  Tensor out = at::empty({tokens, rows.size(1)}, rows.options());
  const SumRowsTask task{.in = rows.const_data_ptr(),
                         .added = added.defined() ? added.const_data_ptr() : nullptr,
                         .out = out.mutable_data_ptr(),
                         .rows = row_of_assignment.const_data_ptr<int32_t>(),
                         .weights = weights_of(weights, row_of_assignment.numel(), "sum_rows: weights"),
                         .tokens = tokens,
                         .n = rows.size(1),
                         .top_k = static_cast<int>(top_k)};
  launch(task, element_of(rows, "sum_rows"));
  return out;
}

template <typename Launch>
Tensor products_of_rows(const Launch& launch, const Tensor& given_a, const Tensor& given_b,
                        const Tensor& row_of_assignment) {
  require_alike(given_b, given_a, "products_of_rows");
  const Tensor a = given_a.contiguous(), b = given_b.contiguous();
  require_numbers(b, a.numel(), "products_of_rows: b");
  Tensor products = at::empty(row_of_assignment.sizes(), a.options().dtype(at::kFloat));
  const RowProductsTask task{.a = a.const_data_ptr(),
                             .b = b.const_data_ptr(),
                             .products = products.mutable_data_ptr<float>(),
                             .rows = row_of_assignment.const_data_ptr<int32_t>(),
                             .assignment_count = row_of_assignment.numel(),
                             .row_count = a.size(0),
                             .n = a.size(1)};
  launch(task, element_of(a, "products_of_rows"));
  return products;
}

template <typename Launch>
WeightedRows weight_rows(const Launch& launch, const Tensor& given_a, const Tensor& given_b,
                         const RowOrder& order, const Tensor& given_weights) {
  require_alike(given_b, given_a, "weight_rows");
  const Tensor a = given_a.contiguous(), b = given_b.contiguous(), weights = given_weights.contiguous();
  require_numbers(b, a.numel(), "weight_rows: b");
  WeightedRows out = {at::empty(a.sizes(), a.options()), at::empty(a.sizes(), a.options()),
                      at::empty(order.rows.sizes(), a.options().dtype(at::kFloat))};
  const RowProductsTask task{.a = a.const_data_ptr(),
                             .b = b.const_data_ptr(),
                             .weighted_a = out.a.mutable_data_ptr(),
                             .weighted_b = out.b.mutable_data_ptr(),
                             .products = out.products.mutable_data_ptr<float>(),
                             .assignments = order.assignments.const_data_ptr<int32_t>(),
                             .rows = order.rows.const_data_ptr<int32_t>(),
                             .weights = weights_of(weights, order.rows.numel(), "weight_rows: weights"),
                             .assignment_count = order.rows.numel(),
                             .row_count = a.size(0),
                             .n = a.size(1)};
  launch(task, element_of(a, "weight_rows"));
  return out;
}

}  // namespace hyperion::kernels::cuda
