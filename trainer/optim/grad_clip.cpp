#include "trainer/optim/grad_clip.h"

#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "models/kernels/sum_of_squares.h"
#include "parallel/trace_range.h"

namespace hyperion::trainer {

namespace {

at::Tensor squares_of(const std::vector<at::Tensor>& grads, at::Device device) {
  at::Tensor total =
      at::zeros({}, at::TensorOptions(device.is_cpu() ? at::kDouble : at::kFloat).device(device));
  for (const at::Tensor& grad : grads)
    if (grad.numel() > 0) total.add_(kernels::sum_of_squares(grad));
  return total;
}

}  // namespace

at::Tensor global_grad_norm(const parallel::LocalGradients& gradients, parallel::Communicator& shard,
                            parallel::Communicator* tensor) {
  const parallel::TraceRange range("gradient norm");
  const at::Device device = gradients.divided.front().device();
  at::Tensor divided = squares_of(gradients.divided, device);
  if (tensor == nullptr) {
    shard.all_reduce_sum(divided);
    return divided.sqrt_();
  }
  const at::Tensor both = at::stack({divided, squares_of(gradients.replicated, device)});
  shard.all_reduce_sum(both);
  tensor->all_reduce_sum(both.select(0, 0));
  return both.sum().sqrt_();
}

void clip_gradients(const parallel::LocalGradients& gradients, const at::Tensor& norm, double max_norm) {
  const parallel::TraceRange range("gradient clipping");
  const at::Tensor factor = (norm + 1e-6).reciprocal().mul_(max_norm).clamp_max_(1.0);
  for (const auto* grads : {&gradients.divided, &gradients.replicated})
    for (const at::Tensor& grad : *grads) grad.mul_(factor.to(grad.scalar_type()));
}

}  // namespace hyperion::trainer
