// Adam and AdamW over this rank's shards (Kingma & Ba, arXiv 1412.6980; decoupled decay: Loshchilov & Hutter,
// arXiv 1711.05101). One parameter group: decay applies to norms and embeddings too, as in v0.2.2. After the
// update it writes the compute-dtype copy of every shard, so that the next step casts nothing.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "models/kernels/adam/adam.h"
#include "parallel/fsdp/sharded_parameter.h"
#include "trainer/config/job_config.h"

namespace hyperion::optim {

class Adam {
 public:
  // States are allocated at once, as zeros: nothing is allocated at the first step.
  Adam(const std::vector<parallel::ShardedParameterPtr>& parameters,
       const config::JobConfig::Optimizer& options);

  // One update from the sharded gradients. `skip`: 0-dim float tensor on the gradients' device; where it is 1
  // (a non-finite loss or norm) no weight and no state changes, decided on the device. `divisor`: 0-dim, what
  // the gradients are divided by first; where divides_gradients() alone.
  void step(double lr, const at::Tensor& skip, const std::optional<at::Tensor>& divisor = std::nullopt);
  // Whether the update divides gradients in its own pass over them: the fused ones, libtorch's or ours.
  bool divides_gradients() const;

  // The state of parameter i, in the order given: [local rows, ...] in the state dtype. One step count for
  // all.
  const std::vector<at::Tensor>& exp_avg() const { return exp_avg_; }
  const std::vector<at::Tensor>& exp_avg_sq() const { return exp_avg_sq_; }
  const at::Tensor& step_count() const { return step_; }

 private:
  void update_fused(kernels::AdamTensors& tensors, double lr, const at::Tensor& skip,
                    const std::optional<at::Tensor>& divisor) const;
  void update_by_formula(kernels::AdamTensors& tensors, double lr, const at::Tensor& skip) const;
  // The fused implementation on a CPU: all of step() in one pass.
  void update_in_one_pass(const kernels::AdamTensors& tensors, double lr,
                          const std::optional<at::Tensor>& divisor) const;

  config::JobConfig::Optimizer options_;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_;  // of every parameter
  std::vector<kernels::AdamTensors>
      updates_;  // of parameters that this rank holds rows of: together, or one by one
  std::vector<at::Tensor> masters_to_copy_, compute_shards_;  // where the compute dtype is another one
  kernels::AdamUpdate* one_pass_ = nullptr;  // the kernel of update_in_one_pass(), where there is one for all
  at::Tensor step_;                          // fp32 0-dim: updates done
};

}  // namespace hyperion::optim
