// A non-finite loss or gradient norm never reaches the weights: the optimizer skips by a flag on the device,
// and the job ends as soon as the host knows, naming the step and the data. What the ranks of a GPU job send
// each other in a step (trainer/engine/step_agreement.h) travels with this check.
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
  // `groups`: all ranks of the job; they agree on the check.
  explicit FiniteGuard(parallel::ReduceChain groups) : groups_(std::move(groups)) {}

  // After the gradient norm of the step `own.step` is known. `own`: what this rank sends the others;
  // `losses`: its microbatch losses (0-dim); `scale`: what they were multiplied by (inverse_of);
  // `describe(i)`: where microbatch i's sequences come from.
  struct Outcome {
    at::Tensor skip;  // the optimizer's flag: 0-dim float, 1 when anything is not finite
    // 0-dim, to clip by: the same bits on every rank. On a GPU the largest of the ranks' norms, since groups
    // of NCCL may add up the same numbers in different orders, and replicas must not drift apart.
    at::Tensor norm;
  };
  Outcome check(const StepFlags& own, const std::vector<at::Tensor>& losses, const at::Tensor& norm,
                const at::Tensor& scale, std::function<std::string(size_t)> describe);

  // Throws Error(kNonFinite) when the step last checked (on a GPU: the one before) was not finite,
  // Error(kBadData) when it had no valid token. `wait`: also on a GPU the last one; before a save, before a
  // step is logged and at the end of training.
  void raise(bool wait);

  // What some rank sent in the newest step that raise() has looked at.
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
