// How tokens reach the experts that were chosen for them, and come back. Each token has k slots, one for each
// of its choices; the rows that experts multiply are the slots in the order of their experts, those of one
// expert in the order of the slots. Numbers alone: no weights, no ranks.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/kernels/expert_rows/expert_rows.h"
#include "models/kernels/matmul/grouped.h"

namespace hyperion::models {

struct ExpertExchange;

// Slot token * k + j is choice j of a token.
struct Dispatch : kernels::RowOrder {
  at::Tensor choices{};           // int64 [tokens, k]: the experts of each token, no two alike
  std::vector<int64_t> counts{};  // expert_rows on the host; empty where the groups of rows are padded

  int64_t top_k() const { return choices.size(1); }
  kernels::RowGroups groups() const { return {counts, ends}; }
};

// Who knows how many rows each expert gets.
enum class RowCounts {
  kOnHost,    // on a GPU the host waits for the counts
  kOnDevice,  // on a GPU the host does not wait, and its counts are zeros
  kPadded,    // the device, and groups of rows are padded
};
// choices: as Dispatch::choices.
// unit: what padded groups are multiples of.
Dispatch dispatch_tokens(const at::Tensor& choices, int64_t experts, RowCounts counts = RowCounts::kOnHost,
                         int64_t unit = kernels::kGroupUnit);

// How the tokens of a microbatch reach their experts. A run of a block keeps it for the run that is repeated
// for its backward: experts that are nearly equal for a token could change places, and rows with them.
struct KeptRouting {
  std::shared_ptr<const Dispatch> dispatch{};
  std::shared_ptr<const ExpertExchange> exchange{};  // null: every expert is here
};

// rows[r] = x[token of r], times the weight of its slot where `weights`, [tokens, k] of
// kernels::opmath_dtype, are defined; rounded once. Rows of the padding are zeros.
// x [tokens, width] -> [rows, width] in x's dtype.
at::Tensor gather_rows(const at::Tensor& x, const Dispatch& dispatch, const at::Tensor& weights);
// For each token the sum of its slots' rows, times their weights where these are defined, and of `added`,
// [tokens, width], last: in fp32 (fp64), rounded once; slot by slot, or by the plain form as libtorch sums.
// rows [rows, width] -> [tokens, width] in their dtype.
at::Tensor sum_rows(const at::Tensor& rows, const Dispatch& dispatch, const at::Tensor& weights,
                    const at::Tensor& added = {});
// The gradient of the weights, [tokens, k] of kernels::opmath_dtype: of each slot the sum over its row of a
// times b, both [rows, width].
at::Tensor gradient_of_weights(const at::Tensor& a, const at::Tensor& b, const Dispatch& dispatch);
// a and b times the weights, [tokens, k], of their rows' slots, rounded once, and gradient_of_weights().
kernels::WeightedRows weight_rows(const at::Tensor& a, const at::Tensor& b, const Dispatch& dispatch,
                                  const at::Tensor& weights);

// A node's input that may not be there: autograd takes no undefined tensors.
inline std::optional<at::Tensor> optional_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace hyperion::models
