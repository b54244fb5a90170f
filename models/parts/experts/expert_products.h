// The three products of a stack of experts' matrices with groups of rows: in the rows' dtype, or in FP8.
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
  std::shared_ptr<const float8::GroupedMatmuls> float8{};  // null: in the rows' dtype
  Exchange* ranks = nullptr;  // that have a part of each expert's hidden width each; null: it is here in full

  // x [rows, in], stack [experts, out, in] -> [rows, out]. Groups of rows are padded for FP8.
  at::Tensor output(Operand& x, const Parameter& stack, const kernels::RowGroups& groups) const;
  // grad [rows, out] -> [rows, in]
  at::Tensor input_gradient(Operand& grad, const Parameter& stack, const kernels::RowGroups& groups) const;
  // -> [experts, out, in]
  at::Tensor weight_gradient(Operand& grad, Operand& x, const kernels::RowGroups& groups) const;
};

}  // namespace hyperion::models
