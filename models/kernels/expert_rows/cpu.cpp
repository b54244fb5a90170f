#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "base/device/parallel_for.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/common/rows.h"
#include "models/kernels/common/scratch.h"
#include "models/kernels/expert_rows/expert_rows.h"
#include "models/kernels/matmul/grouped.h"

namespace hyperion::kernels::cpu {
namespace {

using at::Tensor;

constexpr int64_t kRows = 16;  // of a thread, at least

const float* weights_or_null(const Tensor& weights) {
  return weights.defined() ? weights.const_data_ptr<float>() : nullptr;
}

}  // namespace

// A counting sort, which is stable.
RowOrder order_rows(const Tensor& given, int64_t experts, int64_t unit) {
  const Tensor choices = given.contiguous();
  const int64_t assignments = choices.numel(), k = choices.size(1);
  const auto* choice = choices.const_data_ptr<int32_t>();
  RowOrder order;
  order.expert_rows = at::zeros({experts}, choices.options().dtype(at::kLong));
  auto* counts = order.expert_rows.mutable_data_ptr<int64_t>();
  for (int64_t assignment = 0; assignment < assignments; ++assignment) ++counts[choice[assignment]];
  std::vector<int64_t> next(static_cast<size_t>(experts));  // row of each expert
  int64_t rows = assignments;
  if (unit > 0) {
    PaddedGroups groups = pad_groups(order.expert_rows, assignments, unit);
    rows = groups.rows;
    order.ends = std::move(groups.ends);
    order.padding = std::move(groups.padding);
    const auto* ends = order.ends.const_data_ptr<int>();
    for (int64_t e = 1; e < experts; ++e) next[e] = ends[e - 1];
  } else {
    for (int64_t e = 1; e < experts; ++e) next[e] = next[e - 1] + counts[e - 1];
  }
  order.assignments = at::zeros({rows}, choices.options());
  order.tokens = at::zeros({rows}, choices.options());
  order.rows = at::empty({assignments}, choices.options());
  auto *assignment_of = order.assignments.mutable_data_ptr<int32_t>(),
       *token_of = order.tokens.mutable_data_ptr<int32_t>(), *row_of = order.rows.mutable_data_ptr<int32_t>();
  for (int64_t assignment = 0; assignment < assignments; ++assignment) {
    const int64_t row = next[choice[assignment]]++;
    assignment_of[row] = static_cast<int32_t>(assignment);
    token_of[row] = static_cast<int32_t>(assignment / k);
    row_of[assignment] = static_cast<int32_t>(row);
  }
  return order;
}

Tensor gather_rows(const Tensor& given, const RowOrder& order, const Tensor& weights) {
  const Tensor x = given.contiguous();
  const int64_t rows = order.tokens.numel(), n = x.size(1);
  Tensor out = at::empty({rows, n}, x.options());
  const auto *token_of = order.tokens.const_data_ptr<int32_t>(),
             *assignment_of = order.assignments.const_data_ptr<int32_t>(),
             *row_of = order.rows.const_data_ptr<int32_t>();
  const float* weight = weights_or_null(weights);
  with_element_type(x, [&]<typename T>(T) {
    const T* from = x.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    parallel_for(0, rows, kRows, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t assignment = assignment_of[row];
        const T* source = from + token_of[row] * n;
        if (row_of[assignment] != row) {  // of the padding
          std::fill_n(to + row * n, n, T(0));
        } else if (weight == nullptr) {
          std::copy_n(source, n, to + row * n);
        } else {
          rows::narrow_scaled(source, weight[assignment], to + row * n, n);
        }
      }
    });
  });
  return out;
}

// Adds in the order of the assignments, and `added` last.
Tensor sum_rows(const Tensor& given_rows, const Tensor& row_of_assignment, const Tensor& given_weights,
                const Tensor& given_added, int64_t k) {
  const auto dense = [](const Tensor& t) { return t.defined() ? t.contiguous() : t; };
  const Tensor rows = given_rows.contiguous(), weights = dense(given_weights), added = dense(given_added);
  const int64_t n = rows.size(1), tokens = row_of_assignment.numel() / k;
  Tensor out = at::empty({tokens, n}, rows.options());
  const auto* row_of = row_of_assignment.const_data_ptr<int32_t>();
  const float* weight = weights_or_null(weights);
  with_element_type(rows, [&]<typename T>(T) {
    const T *from = rows.const_data_ptr<T>(), *more = added.defined() ? added.const_data_ptr<T>() : nullptr;
    T* to = out.mutable_data_ptr<T>();
    parallel_for(0, tokens, kRows, [&](int64_t begin, int64_t end) {
      float* sums = thread_scratch(n);
      for (int64_t token = begin; token < end; ++token) {
        std::fill_n(sums, n, 0.0F);
        for (int64_t assignment = token * k; assignment < (token + 1) * k; ++assignment)
          rows::add_scaled(from + row_of[assignment] * n, weight != nullptr ? weight[assignment] : 1.0F, sums,
                           n);
        if (more != nullptr) rows::add_scaled(more + token * n, 1.0F, sums, n);
        rows::narrow(sums, to + token * n, n);
      }
    });
  });
  return out;
}

Tensor products_of_rows(const Tensor& given_a, const Tensor& given_b, const Tensor& row_of_assignment) {
  const Tensor a = given_a.contiguous(), b = given_b.contiguous();
  const int64_t n = a.size(1);
  Tensor products = at::empty(row_of_assignment.sizes(), a.options().dtype(at::kFloat));
  const auto* row_of = row_of_assignment.const_data_ptr<int32_t>();
  auto* product = products.mutable_data_ptr<float>();
  with_element_type(a, [&]<typename T>(T) {
    const T *of_a = a.const_data_ptr<T>(), *of_b = b.const_data_ptr<T>();
    parallel_for(0, products.numel(), kRows, [&](int64_t begin, int64_t end) {
      for (int64_t assignment = begin; assignment < end; ++assignment)
        product[assignment] = rows::dot(of_a + row_of[assignment] * n, of_b + row_of[assignment] * n, n);
    });
  });
  return products;
}

WeightedRows weight_rows(const Tensor& given_a, const Tensor& given_b, const RowOrder& order,
                         const Tensor& weights) {
  const Tensor a = given_a.contiguous(), b = given_b.contiguous();
  const int64_t n = a.size(1);
  WeightedRows out = {at::empty_like(a), at::empty_like(b),
                      at::empty(order.rows.sizes(), a.options().dtype(at::kFloat))};
  const auto *assignment_of = order.assignments.const_data_ptr<int32_t>(),
             *row_of = order.rows.const_data_ptr<int32_t>();
  const auto* weight = weights.const_data_ptr<float>();
  auto* product = out.products.mutable_data_ptr<float>();
  with_element_type(a, [&]<typename T>(T) {
    const T *from_a = a.const_data_ptr<T>(), *from_b = b.const_data_ptr<T>();
    T *to_a = out.a.mutable_data_ptr<T>(), *to_b = out.b.mutable_data_ptr<T>();
    parallel_for(0, a.size(0), kRows, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t assignment = assignment_of[row], at = row * n;
        if (row_of[assignment] != row) {  // of the padding
          std::fill_n(to_a + at, n, T(0));
          std::fill_n(to_b + at, n, T(0));
          continue;
        }
        product[assignment] = rows::dot(from_a + at, from_b + at, n);
        rows::narrow_scaled(from_a + at, weight[assignment], to_a + at, n);
        rows::narrow_scaled(from_b + at, weight[assignment], to_b + at, n);
      }
    });
  });
  return out;
}

}  // namespace hyperion::kernels::cpu
