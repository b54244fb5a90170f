#include "models/parts/experts/expert_products.h"

#include "models/float8/grouped_matmuls.h"

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

at::Tensor ExpertProducts::weight_gradient(Operand& grad, Operand& x,
                                           const kernels::RowGroups& groups) const {
  return float8 ? float8->weight_gradient(grad, x, groups.ends)
                : kernels::grouped_outer_matmul(grad.values, x.values, groups);
}

}  // namespace hyperion::models
