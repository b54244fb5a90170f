// A non-finite loss or gradient norm never reaches the weights: the optimizer skips by a flag on the device,
// and the job ends as soon as the host knows, naming the step and the data. On a GPU the step flags of the
// ranks (trainer/engine/step_agreement.h) travel with this check.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/device/streams.h"
#include "parallel/comm/communicator.h"
#include "trainer/engine/step_agreement.h"

namespace hyperion::trainer {

class FiniteGuard {
 public:
  // `groups` cover all ranks of the job, which agree on the check.
  explicit FiniteGuard(parallel::ReduceChain groups) : groups_(std::move(groups)) {}

  // Call it when the gradient norm of step `own.step` is known. `own` holds the flags that this rank sends,
  // `losses` its microbatch losses (0-dim), `scale` their factor (inverse_of). `describe(i)` says where the
  // sequences of microbatch i come from.
  struct Outcome {
    at::Tensor skip;  // the optimizer's flag (0-dim float): 1 if anything is not finite
    // The norm to clip by (0-dim) has the same bits on every rank, so that replicas do not drift apart. On a
    // GPU it is the maximum over the ranks, because NCCL groups may sum in different orders.
    at::Tensor norm;
  };
  Outcome check(const StepFlags& own, const std::vector<at::Tensor>& losses, const at::Tensor& norm,
                const at::Tensor& scale, std::function<std::string(size_t)> describe);

  // Throws Error(kNonFinite) if the step last checked (on a GPU: the step before it) was not finite,
  // Error(kBadData) if it had no valid token. With `wait` a GPU job also reads the last step; used before a
  // save, before a step is logged and at the end of training.
  void raise(bool wait);

  // The flags of all ranks combined, from the newest step that raise() has read.
  const StepFlags& agreed() const { return agreed_; }

 private:
  struct StepCheck {
    int64_t step = 0;
    at::Tensor values;  // on the host: [skip, stop, save failed, norm, scale, losses...]
    DeviceEvent copied;
    std::function<std::string(size_t)> describe;
  };
  void raise(StepCheck& check);

  parallel::ReduceChain groups_;
  StepCheck current_, previous_;
  StepFlags agreed_;
};

}  // namespace hyperion::trainer
