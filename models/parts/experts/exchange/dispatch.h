// Dispatch maps tokens to the rows that experts multiply, and back. The router chooses k experts for each
// token; assignment token * k + j is the j-th choice of a token. Rows are the assignments sorted by expert;
// the sort is stable. With several slices of tokens they are sorted by slice first.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/kernels/expert_rows/expert_rows.h"
#include "models/kernels/matmul/grouped.h"

namespace hyperion::models {

// Returns the first token of a slice; `tokens` for the number behind the last slice's.
constexpr int64_t first_token_of_slice(int64_t tokens, int64_t slice, int64_t slices) {
  return tokens * slice / slices;
}

struct Dispatch : kernels::RowOrder {
  at::Tensor choices{};           // int32 [tokens, k]: the experts of each token, all different
  std::vector<int64_t> counts{};  // expert_rows on the host; empty if the groups of rows are padded
  // [tokens, k] of kernels::opmath_dtype: 0 for choices without a row
  // (models/parts/experts/exchange/node_exchange.h), else 1. Undefined: all have a row.
  at::Tensor present{};
  int64_t slices = 1;  // the number of slices of tokens; expert_rows is [slices * experts]

  // Returns whether rows are not sorted, because they come in the order of the experts: each row is then a
  // token, and there are neither choices nor an order.
  bool in_order() const { return !rows.defined(); }
  int64_t top_k() const { return choices.size(1); }
  // Returns by what the rows of the assignments are multiplied; undefined: by nothing.
  const at::Tensor& factors(const at::Tensor& weights) const { return weights.defined() ? weights : present; }
  // Returns the number of tokens that `row_count` rows are of.
  int64_t tokens_of(int64_t row_count) const { return in_order() ? row_count : choices.size(0); }
  kernels::RowGroups groups() const { return {counts, ends}; }
};

// RowCounts says where the number of rows of each expert is known.
enum class RowCounts {
  kOnHost,    // on the host, which waits for a GPU's counts
  kOnDevice,  // on the device: with a GPU the host does not wait, and Dispatch::counts are zeros
  kPadded,    // on the device, and groups of rows are padded
};
// Sorts the assignments of `choices` (see Dispatch) by expert. unit: padded groups are multiples of it.
Dispatch dispatch_tokens(const at::Tensor& choices, int64_t experts, RowCounts counts = RowCounts::kOnHost,
                         int64_t unit = kernels::kGroupUnit, int64_t slices = 1);

// Returns slice * groups + group for each of `choices`, int32 [tokens, k], which are groups.
at::Tensor number_groups_by_slice(const at::Tensor& choices, int64_t groups, int64_t slices);

// Gathers x [tokens, width] -> [rows, width] in x's dtype: rows[r] = x[token of row r]. If `weights`
// ([tokens, k] of kernels::opmath_dtype) is defined, each row is multiplied by the weight of its assignment
// and rounded once. Padding rows are zeros.
at::Tensor gather_rows(const at::Tensor& x, const Dispatch& dispatch, const at::Tensor& weights);
// Sums rows [rows, width] -> [tokens, width] in their dtype: each token gets the sum of the rows of its
// assignments, multiplied by `weights` if defined, then adds `added` [tokens, width] if defined. Where some
// choices have no row, defined `weights` are zero there. The sum is in fp32 (fp64), rounded once, in the
// order of the assignments; the plain form sums in libtorch's order.
at::Tensor sum_rows(const at::Tensor& rows, const Dispatch& dispatch, const at::Tensor& weights,
                    const at::Tensor& added = {});
// Returns these sums, without `added`, packed for the way to another node (models/kernels/packed_sums). Some
// choices have no row, or `weights` are defined.
at::Tensor pack_row_sums(const at::Tensor& rows, const Dispatch& dispatch, const at::Tensor& weights);
// Returns the sums of packed rows of n elements, as sum_rows() without weights, in `dtype`.
at::Tensor sum_packed_rows(const at::Tensor& packed, const Dispatch& dispatch, const at::Tensor& added,
                           int64_t n, at::ScalarType dtype);
// Returns the gradient of the weights, [tokens, k] of kernels::opmath_dtype: for each assignment the dot
// product of its rows in a and b, both [rows, width].
at::Tensor gradient_of_weights(const at::Tensor& a, const at::Tensor& b, const Dispatch& dispatch);
// Returns the rows of a and of b multiplied by the weights [tokens, k] of their assignments, rounded once,
// and gradient_of_weights().
kernels::WeightedRows weight_rows(const at::Tensor& a, const at::Tensor& b, const Dispatch& dispatch,
                                  const at::Tensor& weights);

// Wraps an input of an autograd node that may be undefined, because autograd takes no undefined tensors.
inline std::optional<at::Tensor> optional_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace hyperion::models
