#include "models/moe/dispatch.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>

#include "base/device/parallel_for.h"
#include "models/kernels/common/dtype.h"

namespace hyperion::models {
namespace {

using at::Tensor;

// A counting sort, which is stable.
void sort_on_host(Dispatch& dispatch) {
  const int64_t rows = dispatch.choices.numel(), k = dispatch.top_k();
  const int64_t* choice = dispatch.choices.const_data_ptr<int64_t>();
  for (int64_t slot = 0; slot < rows; ++slot) ++dispatch.counts[choice[slot]];
  std::vector<int64_t> next(dispatch.counts.size(), 0);  // row of each expert
  for (size_t expert = 1; expert < next.size(); ++expert)
    next[expert] = next[expert - 1] + dispatch.counts[expert - 1];
  dispatch.slots = at::empty({rows}, dispatch.choices.options());
  dispatch.tokens = at::empty_like(dispatch.slots);
  dispatch.rows = at::empty_like(dispatch.slots);
  auto *slots = dispatch.slots.mutable_data_ptr<int64_t>(),
       *tokens = dispatch.tokens.mutable_data_ptr<int64_t>(),
       *row_of = dispatch.rows.mutable_data_ptr<int64_t>();
  for (int64_t slot = 0; slot < rows; ++slot) {
    const int64_t row = next[choice[slot]]++;
    slots[row] = slot;
    tokens[row] = slot / k;
    row_of[slot] = row;
  }
  dispatch.expert_rows =
      at::empty({static_cast<int64_t>(dispatch.counts.size())}, dispatch.choices.options());
  std::ranges::copy(dispatch.counts, dispatch.expert_rows.mutable_data_ptr<int64_t>());
}

Tensor count_rows(const Tensor& flat, int64_t experts) {
  return at::zeros({experts}, flat.options()).scatter_add_(0, flat, at::ones_like(flat));
}

// Slots in the order of their experts, each in a row of its padded group.
void sort_into_padded_groups(Dispatch& dispatch, int64_t experts, int64_t unit) {
  const Tensor flat = dispatch.choices.flatten();
  const int64_t slots = flat.numel();
  dispatch.expert_rows = count_rows(flat, experts);
  const kernels::PaddedGroups groups = kernels::pad_groups(dispatch.expert_rows, slots, unit);
  // A radix sort takes a fourth of the passes for keys of 16 bits.
  const auto dtype = experts <= std::numeric_limits<int16_t>::max() ? at::kShort : flat.scalar_type();
  const auto [keys, order] = at::sort(flat.to(dtype), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const Tensor sorted = keys.to(flat.scalar_type());
  const Tensor row = at::arange(slots, flat.options()).add_(groups.shift.index_select(0, sorted));
  dispatch.slots = at::zeros({groups.rows}, flat.options()).index_copy_(0, row, order);
  dispatch.tokens = dispatch.slots.floor_divide(dispatch.top_k());
  dispatch.rows = at::empty_like(flat).index_copy_(0, order, row);
  dispatch.ends = groups.ends;
  dispatch.padding = groups.padding;
}

void sort_on_device(Dispatch& dispatch, bool counts_on_host) {
  const Tensor flat = dispatch.choices.flatten();
  dispatch.expert_rows = count_rows(flat, static_cast<int64_t>(dispatch.counts.size()));
  dispatch.slots = std::get<1>(at::sort(flat, /*stable=*/true, /*dim=*/0, /*descending=*/false));
  dispatch.tokens = dispatch.slots.floor_divide(dispatch.top_k());
  dispatch.rows = at::empty_like(dispatch.slots);
  dispatch.rows.index_copy_(0, dispatch.slots, at::arange(flat.numel(), flat.options()));
  if (!counts_on_host) return;
  const Tensor on_host = dispatch.expert_rows.cpu();
  std::ranges::copy(std::span(on_host.const_data_ptr<int64_t>(), dispatch.counts.size()),
                    dispatch.counts.begin());
}

template <typename T, typename Sum>
void sum_rows_on_host(const Tensor& rows, const Dispatch& dispatch, const Tensor& weights,
                      const Tensor& added, const Tensor& out) {
  const int64_t width = rows.size(1), k = dispatch.top_k();
  const T *from = rows.const_data_ptr<T>(), *more = added.defined() ? added.const_data_ptr<T>() : nullptr;
  const Sum* weight = weights.defined() ? weights.const_data_ptr<Sum>() : nullptr;
  const auto* row_of = dispatch.rows.const_data_ptr<int64_t>();
  T* to = out.mutable_data_ptr<T>();
  parallel_for(0, out.size(0), 16, [&](int64_t begin, int64_t end) {
    std::vector<Sum> sums(static_cast<size_t>(width));
    for (int64_t token = begin; token < end; ++token) {
      std::ranges::fill(sums, Sum(0));
      for (int64_t slot = token * k; slot < (token + 1) * k; ++slot) {
        const T* row = from + row_of[slot] * width;
        const Sum factor = weight != nullptr ? weight[slot] : Sum(1);
        for (int64_t i = 0; i < width; ++i) sums[i] += factor * static_cast<Sum>(row[i]);
      }
      if (more != nullptr)
        for (int64_t i = 0; i < width; ++i) sums[i] += static_cast<Sum>(more[token * width + i]);
      for (int64_t i = 0; i < width; ++i) to[token * width + i] = static_cast<T>(sums[i]);
    }
  });
}

}  // namespace

Dispatch dispatch_tokens(const Tensor& choices, int64_t experts, RowCounts counts, int64_t unit) {
  Dispatch dispatch{.choices = choices.contiguous()};
  if (counts == RowCounts::kPadded) {
    sort_into_padded_groups(dispatch, experts, unit);
    return dispatch;
  }
  dispatch.counts.resize(experts, 0);
  if (choices.is_cpu())
    sort_on_host(dispatch);
  else
    sort_on_device(dispatch, counts == RowCounts::kOnHost);
  return dispatch;
}

Tensor gather_rows(const Tensor& x, const Dispatch& dispatch, const Tensor& weights) {
  if (x.size(0) == 0) return at::zeros({dispatch.tokens.size(0), x.size(1)}, x.options());  // padding alone
  Tensor rows = x.index_select(0, dispatch.tokens);
  if (dispatch.padding.defined()) rows.index_fill_(0, dispatch.padding, 0);
  if (!weights.defined()) return rows;
  const Tensor of_rows = weights.flatten().index_select(0, dispatch.slots).unsqueeze(1);
  return rows.mul(of_rows).to(x.scalar_type());
}

Tensor sum_rows(const Tensor& rows, const Dispatch& dispatch, const Tensor& weights, const Tensor& added) {
  const int64_t tokens = dispatch.choices.size(0), k = dispatch.top_k();
  const at::ScalarType wide = kernels::opmath_dtype(rows);
  if (rows.is_cpu() && (kernels::is_fused_dtype(rows) || wide == at::kDouble)) {
    const Tensor out = at::empty({tokens, rows.size(1)}, rows.options());
    const auto run = [&]<typename T, typename Sum>(T, Sum) {
      sum_rows_on_host<T, Sum>(rows.contiguous(), dispatch, weights,
                               added.defined() ? added.contiguous() : added, out);
    };
    if (wide == at::kDouble)
      run(double(), double());
    else
      kernels::with_element_type(rows, [&](auto element) { run(element, float()); });
    return out;
  }
  // As few launches for many choices as for one.
  Tensor terms = rows.index_select(0, dispatch.rows).view({tokens, k, rows.size(1)});
  if (weights.defined()) terms = terms.mul(weights.unsqueeze(2));  // in the dtype of sums
  Tensor sum = terms.sum(1, /*keepdim=*/false, added.defined() ? wide : terms.scalar_type());
  if (added.defined()) sum.add_(added);
  return sum.to(rows.scalar_type());
}

Tensor gradient_of_weights(const Tensor& a, const Tensor& b, const Dispatch& dispatch) {
  const Tensor of_rows = a.mul(b.to(kernels::opmath_dtype(a))).sum(1);
  return of_rows.index_select(0, dispatch.rows).view(dispatch.choices.sizes());
}

}  // namespace hyperion::models
