// Adam and AdamW over this rank's shards (Kingma & Ba, arXiv 1412.6980; decoupled decay: Loshchilov & Hutter,
// arXiv 1711.05101). One parameter group: decay applies to norms and embeddings too, as in v0.2.2. After the
// update it writes the compute-dtype copy of every shard, so that the next step casts nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "parallel/sharded_parameter.h"

namespace hyperion {

struct AdamOptions {
  // Fused: one kernel of libtorch. The other two compute the formula operation by operation: foreach on all
  // tensors at once, for-loop on one tensor after the other, which needs less temporary memory.
  enum class Implementation { kFused, kForeach, kForLoop };
  bool decoupled_decay = true;  // AdamW; false: Adam, decay joins the gradient
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  Implementation implementation = Implementation::kFused;
};

class Adam {
 public:
  // States are allocated at once, as zeros: nothing is allocated at the first step.
  Adam(const std::vector<ShardedParameterPtr>& parameters, const AdamOptions& options);

  // One update from the sharded gradients. `skip`: 0-dim float tensor on the gradients' device; where it is 1
  // (a non-finite loss or norm) no weight and no state changes, decided on the device.
  void step(double lr, const at::Tensor& skip);

  // The state of parameter i, in the order given: [local rows, ...] in the state dtype. One step count for
  // all.
  const std::vector<at::Tensor>& exp_avg() const { return exp_avg_; }
  const std::vector<at::Tensor>& exp_avg_sq() const { return exp_avg_sq_; }
  const at::Tensor& step_count() const { return step_; }

 private:
  // Tensors that are updated together; entry i of each list belongs to the same parameter.
  struct TensorLists {
    std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs;
  };
  void update_fused(TensorLists& tensors, double lr, const at::Tensor& skip) const;
  void update_by_formula(TensorLists& tensors, double lr, const at::Tensor& skip) const;

  AdamOptions options_;
  std::vector<at::Tensor> exp_avg_, exp_avg_sq_;  // of every parameter
  std::vector<TensorLists> updates_;  // of the parameters that this rank holds rows of: one list, or one each
  std::vector<at::Tensor> masters_to_copy_, compute_shards_;  // where the compute dtype is another one
  at::Tensor step_;                                           // fp32 0-dim: updates done
};

}  // namespace hyperion
