// The three grouped products of a stack of experts' matrices (forward, dgrad, wgrad), in the rows' dtype or
// in FP8.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "base/exchange.h"
#include "base/parameter.h"
#include "models/float8/operand.h"
#include "models/kernels/matmul/grouped.h"

namespace hyperion::float8 {
class GroupedMatmuls;
}

namespace hyperion::models {

struct ExpertProducts {
  std::shared_ptr<const float8::GroupedMatmuls> float8{};  // null: products in the rows' dtype
  Exchange* etp_group = nullptr;  // shards the hidden width of each expert; null: not sharded

  // x [rows, in], stack [experts, out, in] -> [rows, out]. FP8 needs padded groups.
  at::Tensor output(Operand& x, const Parameter& stack, const kernels::RowGroups& groups) const;
  // dgrad: grad [rows, out] -> [rows, in]
  at::Tensor input_gradient(Operand& grad, const Parameter& stack, const kernels::RowGroups& groups) const;
  // wgrad: -> [experts, out, in]
  at::Tensor weight_gradient(Operand& grad, Operand& x, const kernels::RowGroups& groups) const;
};

}  // namespace hyperion::models
