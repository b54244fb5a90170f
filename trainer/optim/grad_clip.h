// The global L2 norm of the sharded gradients, and clipping by it, without a wait for the host.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/comm/communicator.h"
#include "parallel/fsdp/fsdp.h"

namespace hyperion::optim {

// Gradients of which the ranks of each of these groups hold different elements (never those of replicas).
struct GradientClass {
  std::vector<at::Tensor> gradients;
  std::vector<parallel::Communicator*> groups;
};
// `shard`: the ranks that hold different rows; `tensor`: those that have divided parameters, or null;
// `stages`: those with other layers; `experts`: those that hold different parts of a unit's experts, none
// without expert parallelism (ProcessGroups::expert_groups).
std::vector<GradientClass> gradient_classes(const parallel::LocalGradients& gradients,
                                            parallel::Communicator& shard, parallel::Communicator* tensor,
                                            parallel::Communicator& stages,
                                            const std::vector<parallel::Communicator*>& experts = {});

// Square root of the sum of squares of all elements, each counted once. A class may be empty; all ranks name
// the same ones in the same order, and those that share a group stand side by side. Padding must be zero.
// 0-dim, fp32 (fp64 on the CPU, with the same bits on every rank), on `device`, where the gradients are.
at::Tensor global_grad_norm(const std::vector<GradientClass>& classes, at::Device device);

// What gradients are divided by to clip them: max(1, (norm + 1e-6) / max_norm), 0-dim. For an optimizer that
// does so in its update.
at::Tensor clip_divisor(const at::Tensor& norm, double max_norm);

// Multiplies the gradients by min(1, max_norm / (norm + 1e-6)), torch's clip_grad_norm_ rule.
void clip_gradients(const parallel::LocalGradients& gradients, const at::Tensor& norm, double max_norm);

}  // namespace hyperion::optim
