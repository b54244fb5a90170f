// Computes the global L2 norm of the sharded gradients and clips by it, without waiting for the host.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "parallel/comm/communicator.h"
#include "parallel/fsdp/fsdp.h"

namespace hyperion::optim {

// Gradients with the process groups whose ranks hold different elements of them. Replicate groups are never
// listed.
struct GradientClass {
  std::vector<at::Tensor> gradients;
  std::vector<parallel::Communicator*> groups;
};
// `shard` is the FSDP group, `tensor` the tensor parallel group or null, `stages` the pipeline group.
// `experts` are the groups that shard a unit's experts (ProcessGroups::expert_groups), none without expert
// parallelism.
std::vector<GradientClass> gradient_classes(const parallel::LocalGradients& gradients,
                                            parallel::Communicator& shard, parallel::Communicator* tensor,
                                            parallel::Communicator& stages,
                                            const std::vector<parallel::Communicator*>& experts = {});

// Returns the square root of the sum of squares of all elements, each counted once. A class may be empty. All
// ranks pass the same classes in the same order, and classes that share a group are adjacent. Padding must be
// zero. The result is 0-dim on `device`, the gradients' device: fp32, or on the CPU fp64 with the same bits
// on every rank. Collective.
at::Tensor global_grad_norm(const std::vector<GradientClass>& classes, at::Device device);

// Returns the divisor that clips gradients: max(1, (norm + 1e-6) / max_norm), 0-dim. For an optimizer that
// divides gradients in its update.
at::Tensor clip_divisor(const at::Tensor& norm, double max_norm);

// Multiplies the gradients by min(1, max_norm / (norm + 1e-6)), as torch's clip_grad_norm_ does.
void clip_gradients(const parallel::LocalGradients& gradients, const at::Tensor& norm, double max_norm);

}  // namespace hyperion::optim
