// The three grouped products of a stack of experts' matrices (forward, dgrad, wgrad), in the rows' dtype or
// in FP8.
#pragma once

#include <memory>
#include <vector>

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
  // Returns the outputs of w1 and w3, each [rows, hidden]: halves of one product where the stacks lie side by
  // side (Parameter::pack).
  std::vector<at::Tensor> gate_and_up(Operand& x, const Parameter& w1, const Parameter& w3,
                                      const kernels::RowGroups& groups) const;
  // Returns the gradient of rows that w1 and w3 read. Stacks side by side are one product, which rounds once;
  // FP8 then scales a row of both gradients by one number.
  at::Tensor input_gradient_of_both(const at::Tensor& gate, const at::Tensor& up, const Parameter& w1,
                                    const Parameter& w3, const kernels::RowGroups& groups) const;
  // wgrad: -> [experts, out, in]
  at::Tensor weight_gradient(Operand& grad, Operand& x, const kernels::RowGroups& groups) const;
};

// Returns a gradient as wgrad reads it. gate's and up's lie side by side, so their rows have gaps, which a
// product of all groups and FP8 casts read.
at::Tensor readable_rows(const at::Tensor& grad, const kernels::RowGroups& groups);

}  // namespace hyperion::models
