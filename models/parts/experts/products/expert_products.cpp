#include "models/parts/experts/products/expert_products.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/tensor.h>

#include "models/float8/grouped_matmuls.h"
#include "models/kernels/kernels.h"
#include "models/layers/packed_linear.h"

namespace hyperion::models {
namespace {

// Returns where the groups of `rows` end, on their device.
at::Tensor ends_of(const kernels::RowGroups& groups, const at::Tensor& rows) {
  if (groups.ends.defined()) return groups.ends;
  std::vector<int32_t> ends;
  int64_t end = 0;
  for (const int64_t count : groups.counts) ends.push_back(static_cast<int32_t>(end += count));
  return at::tensor(ends, at::kInt).to(rows.device());
}

}  // namespace

at::Tensor ExpertProducts::output(Operand& x, const Parameter& stack,
                                  const kernels::RowGroups& groups) const {
  return float8 ? float8->output(x, stack, groups.ends, etp_group)
                : kernels::grouped_matmul(x.values, stack.weight.transpose(1, 2), groups);
}

at::Tensor ExpertProducts::input_gradient(Operand& grad, const Parameter& stack,
                                          const kernels::RowGroups& groups) const {
  return float8 ? float8->input_gradient(grad, stack, groups.ends, etp_group)
                : kernels::grouped_matmul(grad.values, stack.weight, groups);
}

std::vector<at::Tensor> ExpertProducts::gate_and_up(Operand& x, const ExpertStacks& stacks,
                                                    const kernels::RowGroups& groups) const {
  const Parameter& w1 = *stacks.w1;
  if (stacks.clamped()) {
    const at::Tensor both = output(x, w1, groups);
    kernels::table().add_group_bias(both, stacks.b1->weight, ends_of(groups, both));
    return {both};
  }
  if (!w1.pack->weight.defined()) return {output(x, w1, groups), output(x, *stacks.w3, groups)};
  const at::Tensor both = output(x, *w1.pack, groups);
  // Autograd does not see the views, so a node can return them as separate tensors.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const int64_t hidden = both.size(1) / 2;
  return {both.narrow(1, 0, hidden), both.narrow(1, hidden, hidden)};
}

at::Tensor ExpertProducts::input_gradient_of_both(const std::vector<at::Tensor>& gate_up,
                                                  const ExpertStacks& stacks,
                                                  const kernels::RowGroups& groups) const {
  const Parameter& w1 = *stacks.w1;
  if (stacks.clamped()) {
    Operand both(readable_rows(gate_up[0], groups));
    return input_gradient(both, w1, groups);
  }
  if (w1.pack->weight.defined()) {
    Operand both(side_by_side({gate_up[0], gate_up[1]}));
    return input_gradient(both, *w1.pack, groups);
  }
  Operand of_gate(readable_rows(gate_up[0], groups)), of_up(readable_rows(gate_up[1], groups));
  const at::Tensor sum = input_gradient(of_up, *stacks.w3, groups);
  return sum.add_(input_gradient(of_gate, w1, groups));
}

std::vector<at::Tensor> ExpertProducts::token_stack_gradients(std::vector<Operand>& gate_up, Operand& x,
                                                              const ExpertStacks& stacks,
                                                              const kernels::RowGroups& groups) const {
  const auto of = [&](const Parameter& stack, Operand& grad) {
    return stack.trainable ? weight_gradient(grad, x, groups) : at::Tensor();
  };
  if (!stacks.clamped()) return {of(*stacks.w1, gate_up[0]), of(*stacks.w3, gate_up[1])};
  return {of(*stacks.w1, gate_up[0]),
          stacks.b1->trainable ? bias_gradient(gate_up[0].values, groups) : at::Tensor()};
}

at::Tensor ExpertProducts::down(Operand& h, const ExpertStacks& stacks,
                                const kernels::RowGroups& groups) const {
  const at::Tensor rows = output(h, *stacks.w2, groups);
  if (stacks.clamped())
    kernels::table().add_group_bias(columns_of_bias(rows, *stacks.b2), stacks.b2->weight,
                                    ends_of(groups, rows));
  return rows;
}

at::Tensor activate(const std::vector<at::Tensor>& gate_up, const ExpertStacks& stacks,
                    Activation activation) {
  return stacks.clamped() ? kernels::table().clamped_gate(gate_up[0])
                          : kernels::table().gated_activation(gate_up[0], gate_up[1], activation);
}

std::vector<at::Tensor> activate_backward(const at::Tensor& grad, const std::vector<at::Tensor>& gate_up,
                                          const ExpertStacks& stacks, Activation activation) {
  if (stacks.clamped()) return {kernels::table().clamped_gate_backward(grad, gate_up[0])};
  auto [gate, up] = kernels::table().gated_activation_backward(grad, gate_up[0], gate_up[1], activation);
  return {gate, up};
}

at::Tensor columns_of_bias(const at::Tensor& rows, const Parameter& b2) {
  return rows.narrow(1, box_of(b2.shape, b2.cuts).offset[1], b2.local[1]);
}

at::Tensor bias_gradient(const at::Tensor& grad, const kernels::RowGroups& groups) {
  return kernels::table().sum_groups(grad, ends_of(groups, grad));
}

at::Tensor readable_rows(const at::Tensor& grad, const kernels::RowGroups& groups) {
  const bool reads_gaps = groups.ends.defined() && grad.stride(1) == 1;
  return reads_gaps ? grad : grad.contiguous();
}

at::Tensor ExpertProducts::weight_gradient(Operand& grad, Operand& x,
                                           const kernels::RowGroups& groups) const {
  return float8 ? float8->weight_gradient(grad, x, groups.ends)
                : kernels::grouped_outer_matmul(grad.values, x.values, groups);
}

}  // namespace hyperion::models
