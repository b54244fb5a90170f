#include "trainer/optim/grad_clip.h"

#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "models/kernels/kernels.h"
#include "parallel/trace_range.h"

namespace hyperion::trainer {

namespace {

at::Tensor squares_of(const std::vector<at::Tensor>& grads, at::Device device) {
  if (device.is_cuda()) {  // one launch for each, and two for all
    const at::Tensor norms =
        at::zeros({static_cast<int64_t>(grads.size())}, at::TensorOptions(at::kFloat).device(device));
    for (size_t i = 0; i < grads.size(); ++i) {
      at::Tensor norm = norms.select(0, static_cast<int64_t>(i));
      if (grads[i].numel() > 0)
        at::linalg_vector_norm_out(norm, grads[i], 2, std::nullopt, /*keepdim=*/false, at::kFloat);
    }
    return norms.square().sum();
  }
  at::Tensor total =
      at::zeros({}, at::TensorOptions(device.is_cpu() ? at::kDouble : at::kFloat).device(device));
  for (const at::Tensor& grad : grads)
    if (grad.numel() > 0) total.add_(kernels::table().sum_of_squares(grad));
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

at::Tensor clip_divisor(const at::Tensor& norm, double max_norm) {
  return (norm + 1e-6).div_(max_norm).clamp_min_(1.0);
}

void clip_gradients(const parallel::LocalGradients& gradients, const at::Tensor& norm, double max_norm) {
  const parallel::TraceRange range("gradient clipping");
  const at::Tensor factor = (norm + 1e-6).reciprocal().mul_(max_norm).clamp_max_(1.0);
  for (const auto* grads : {&gradients.divided, &gradients.replicated})
    for (const at::Tensor& grad : *grads) grad.mul_(factor.to(grad.scalar_type()));
}

}  // namespace hyperion::trainer
