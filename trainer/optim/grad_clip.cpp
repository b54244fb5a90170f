#include "trainer/optim/grad_clip.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include "models/kernels/sum_of_squares.h"
#include "parallel/trace_range.h"

namespace hyperion::trainer {

at::Tensor global_grad_norm(std::span<const at::Tensor> grads, parallel::Communicator& shard) {
  const parallel::TraceRange range("gradient norm");
  const at::Device device = grads.front().device();
  at::Tensor total =
      at::zeros({}, at::TensorOptions(device.is_cpu() ? at::kDouble : at::kFloat).device(device));
  for (const at::Tensor& grad : grads)
    if (grad.numel() > 0) total.add_(kernels::sum_of_squares(grad));
  shard.all_reduce_sum(total);
  return total.sqrt_();
}

void clip_gradients(std::span<const at::Tensor> grads, const at::Tensor& norm, double max_norm) {
  const parallel::TraceRange range("gradient clipping");
  const at::Tensor factor = (norm + 1e-6).reciprocal().mul_(max_norm).clamp_max_(1.0);
  for (const at::Tensor& grad : grads) grad.mul_(factor.to(grad.scalar_type()));
}

}  // namespace hyperion::trainer
