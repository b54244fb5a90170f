// The three grouped products of a stack of experts' matrices (forward, dgrad, wgrad), in the rows' dtype or
// in FP8.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/exchange.h"
#include "base/parameter.h"
#include "models/args/activation.h"
#include "models/float8/operand.h"
#include "models/kernels/matmul/grouped.h"

namespace hyperion::float8 {
class GroupedMatmuls;
}

namespace hyperion::models {

// The parameters of the routed experts of a block.
//
// gpt_oss's experts have a clamped gate (models/kernels/clamped_gate): w1 [experts, 2 hidden, dim] has the
// rows of gate and up in turn, w3 is null, and both products have biases. The part of b2 that this rank holds
// is that of some columns, of which it adds the bias to its partial sums: each column gets it once, and its
// gradient is complete.
struct ExpertStacks {
  ParameterPtr w1, w2, w3{};  // [experts, hidden, dim], [experts, dim, hidden], [experts, hidden, dim]
  ParameterPtr b1{}, b2{};    // [experts, 2 hidden], [experts, dim]; null without a clamped gate

  bool clamped() const { return b1 != nullptr; }
  // The parameters that multiply rows of tokens, and those that multiply hidden rows.
  std::vector<ParameterPtr> of_tokens() const { return {w1, clamped() ? b1 : w3}; }
  std::vector<ParameterPtr> of_hidden() const {
    return clamped() ? std::vector<ParameterPtr>{w2, b2} : std::vector<ParameterPtr>{w2};
  }
};

struct ExpertProducts {
  std::shared_ptr<const float8::GroupedMatmuls> float8{};  // null: products in the rows' dtype
  Exchange* etp_group = nullptr;  // shards the hidden width of each expert; null: not sharded

  // x [rows, in], stack [experts, out, in] -> [rows, out]. FP8 needs padded groups.
  at::Tensor output(Operand& x, const Parameter& stack, const kernels::RowGroups& groups) const;
  // dgrad: grad [rows, out] -> [rows, in]
  at::Tensor input_gradient(Operand& grad, const Parameter& stack, const kernels::RowGroups& groups) const;
  // Returns the outputs of w1 and w3, each [rows, hidden]: halves of one product where the stacks lie side by
  // side (Parameter::pack). With a clamped gate it returns one tensor, [rows, 2 hidden].
  std::vector<at::Tensor> gate_and_up(Operand& x, const ExpertStacks& stacks,
                                      const kernels::RowGroups& groups) const;
  // Returns the gradient of rows from those of gate_and_up(). Stacks side by side are one product, which
  // rounds once; FP8 then scales a row of both gradients by one number.
  at::Tensor input_gradient_of_both(const std::vector<at::Tensor>& gate_up, const ExpertStacks& stacks,
                                    const kernels::RowGroups& groups) const;
  // Returns the gradients of stacks.of_tokens() from those of gate_and_up(), which readable_rows() returned;
  // undefined for frozen ones.
  std::vector<at::Tensor> token_stack_gradients(std::vector<Operand>& gate_up, Operand& x,
                                                const ExpertStacks& stacks,
                                                const kernels::RowGroups& groups) const;
  // h [rows, hidden] -> the experts' outputs, [rows, dim], with their bias.
  at::Tensor down(Operand& h, const ExpertStacks& stacks, const kernels::RowGroups& groups) const;
  // wgrad: -> [experts, out, in]
  at::Tensor weight_gradient(Operand& grad, Operand& x, const kernels::RowGroups& groups) const;
};

// Returns act(gate) * up, or the clamped gate, of gate_and_up(); and its gradients.
at::Tensor activate(const std::vector<at::Tensor>& gate_up, const ExpertStacks& stacks,
                    Activation activation);
std::vector<at::Tensor> activate_backward(const at::Tensor& grad, const std::vector<at::Tensor>& gate_up,
                                          const ExpertStacks& stacks, Activation activation);

// Returns the columns of rows [rows, dim] to which this rank adds b2.
at::Tensor columns_of_bias(const at::Tensor& rows, const Parameter& b2);
// Returns the gradient of a bias [experts, n]: the sums of each expert's rows of grad [rows, n].
at::Tensor bias_gradient(const at::Tensor& grad, const kernels::RowGroups& groups);

// Returns a gradient as wgrad reads it. gate's and up's lie side by side, so their rows have gaps, which a
// product of all groups and FP8 casts read.
at::Tensor readable_rows(const at::Tensor& grad, const kernels::RowGroups& groups);

}  // namespace hyperion::models
