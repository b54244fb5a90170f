// The global L2 norm of the sharded gradients, and clipping by it, without a wait for the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "parallel/communicator.h"

namespace hyperion::trainer {

// Square root of the sum of squares of all elements, summed over the ranks that hold different rows (never
// over replicas). `grads`: this rank's gradient rows, any number of tensors; padding must be zero. 0-dim,
// fp32 (fp64 on the CPU), on the gradients' device.
at::Tensor global_grad_norm(std::span<const at::Tensor> grads, parallel::Communicator& shard);

// Multiplies the gradients by min(1, max_norm / (norm + 1e-6)), torch's clip_grad_norm_ rule.
void clip_gradients(std::span<const at::Tensor> grads, const at::Tensor& norm, double max_norm);

}  // namespace hyperion::trainer
