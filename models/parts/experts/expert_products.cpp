#include "models/parts/experts/expert_products.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "models/float8/grouped_matmuls.h"
#include "models/layers/packed_linear.h"

namespace hyperion::models {

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

std::vector<at::Tensor> ExpertProducts::gate_and_up(Operand& x, const Parameter& w1, const Parameter& w3,
                                                    const kernels::RowGroups& groups) const {
  if (!w1.pack->weight.defined()) return {output(x, w1, groups), output(x, w3, groups)};
  const at::Tensor both = output(x, *w1.pack, groups);
  // Autograd does not see the views, so a node can return them as separate tensors.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const int64_t hidden = both.size(1) / 2;
  return {both.narrow(1, 0, hidden), both.narrow(1, hidden, hidden)};
}

at::Tensor ExpertProducts::input_gradient_of_both(const at::Tensor& gate, const at::Tensor& up,
                                                  const Parameter& w1, const Parameter& w3,
                                                  const kernels::RowGroups& groups) const {
  if (w1.pack->weight.defined()) {
    Operand both(side_by_side({gate, up}));
    return input_gradient(both, *w1.pack, groups);
  }
  Operand of_gate(readable_rows(gate, groups)), of_up(readable_rows(up, groups));
  const at::Tensor sum = input_gradient(of_up, w3, groups);
  return sum.add_(input_gradient(of_gate, w1, groups));
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
