#include "models/parts/experts/exchange/dispatch.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"
#include "models/kernels/kernels.h"

namespace hyperion::models {
using at::Tensor;

Tensor number_groups_by_slice(const Tensor& choices, int64_t groups, int64_t slices) {
  if (slices == 1) return choices;
  const Tensor numbers = choices.clone();
  const int64_t tokens = choices.size(0);
  for (int64_t slice = 1; slice < slices; ++slice) {
    const int64_t first = first_token_of_slice(tokens, slice, slices);
    numbers.narrow(0, first, first_token_of_slice(tokens, slice + 1, slices) - first).add_(slice * groups);
  }
  return numbers;
}

Dispatch dispatch_tokens(const Tensor& choices, int64_t experts, RowCounts counts, int64_t unit,
                         int64_t slices) {
  const int64_t groups = slices * experts;
  // The order of rows is kept for backward, in numbers of 32 bits.
  if (choices.numel() + (groups + 1) * unit > std::numeric_limits<int>::max())
    throw_config(
        "the experts of a layer would get {} rows from a rank's tokens at once, and their order has numbers "
        "of 32 bits: use a smaller training.local_batch_size, training.seq_len or model.args.top_k",
        choices.numel());
  const Tensor dense = choices.contiguous();
  const bool padded = counts == RowCounts::kPadded;
  Dispatch dispatch = {
      kernels::table().order_rows(number_groups_by_slice(dense, experts, slices), groups, padded ? unit : 0),
      dense};
  dispatch.slices = slices;
  if (padded) return dispatch;
  dispatch.counts.resize(groups, 0);
  if (choices.is_cpu() || counts == RowCounts::kOnHost) {
    const Tensor on_host = dispatch.expert_rows.cpu();
    std::ranges::copy(std::span(on_host.const_data_ptr<int64_t>(), dispatch.counts.size()),
                      dispatch.counts.begin());
  }
  return dispatch;
}

Tensor gather_rows(const Tensor& x, const Dispatch& dispatch, const Tensor& weights) {
  if (dispatch.in_order()) {
    if (weights.defined()) throw_bug("rows in the order of the experts have no assignments to weigh");
    return x;
  }
  if (x.size(0) == 0) return at::zeros({dispatch.tokens.size(0), x.size(1)}, x.options());  // padding alone
  return kernels::table().gather_rows(x, dispatch, weights.defined() ? weights.flatten() : weights);
}

Tensor sum_rows(const Tensor& rows, const Dispatch& dispatch, const Tensor& weights, const Tensor& added) {
  if (dispatch.in_order()) {
    if (weights.defined() || added.defined())
      throw_bug("rows in the order of the experts have no tokens to sum for");
    return rows;
  }
  return kernels::table().sum_rows(rows, dispatch.rows, dispatch.factors(weights), added, dispatch.top_k());
}

Tensor pack_row_sums(const Tensor& rows, const Dispatch& dispatch, const Tensor& weights) {
  return kernels::table().pack_row_sums(rows, dispatch.rows, dispatch.factors(weights));
}

Tensor sum_packed_rows(const Tensor& packed, const Dispatch& dispatch, const Tensor& added, int64_t n,
                       at::ScalarType dtype) {
  return kernels::table().sum_packed_rows(packed, dispatch.rows, dispatch.present, added, n, dtype);
}

Tensor gradient_of_weights(const Tensor& a, const Tensor& b, const Dispatch& dispatch) {
  return kernels::table().products_of_rows(a, b, dispatch.rows).view(dispatch.choices.sizes());
}

kernels::WeightedRows weight_rows(const Tensor& a, const Tensor& b, const Dispatch& dispatch,
                                  const Tensor& weights) {
  if (weights.numel() == 0)  // padding alone
    return {at::zeros_like(a), at::zeros_like(b), at::empty_like(weights)};
  kernels::WeightedRows weighted = kernels::table().weight_rows(a, b, dispatch, weights.flatten());
  weighted.products = weighted.products.view(dispatch.choices.sizes());
  return weighted;
}

}  // namespace hyperion::models
