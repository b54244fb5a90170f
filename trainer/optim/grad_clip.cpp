#include "trainer/optim/grad_clip.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

namespace hyperion {

at::Tensor global_grad_norm(std::span<const at::Tensor> grads, Communicator& shard) {
  const at::Tensor& first = grads.front();
  const at::ScalarType dtype = first.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor total = at::zeros({}, first.options().dtype(dtype).pinned_memory(false));
  for (const at::Tensor& grad : grads)
    if (grad.numel() > 0) total.add_(at::linalg_vector_norm(grad, 2, std::nullopt, false, dtype).square());
  shard.all_reduce_sum(total);
  return total.sqrt_();
}

void clip_gradients(std::span<const at::Tensor> grads, const at::Tensor& norm, double max_norm) {
  const at::Tensor factor = (norm + 1e-6).reciprocal().mul_(max_norm).clamp_max_(1.0);
  for (const at::Tensor& grad : grads) grad.mul_(factor);
}

}  // namespace hyperion
