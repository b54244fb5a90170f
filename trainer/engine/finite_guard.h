// A non-finite loss or gradient norm never reaches the weights: the optimizer skips by a flag on the device,
// and as soon as the host knows, the job ends, or continues without the update, naming the step and the data.
// On a GPU the step flags of the ranks (trainer/engine/step_agreement.h) travel with this check.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/device/streams.h"
#include "parallel/comm/communicator.h"
#include "trainer/engine/norm_history.h"
#include "trainer/engine/step_agreement.h"

namespace hyperion::trainer {

// SkipRules decide which steps are skipped instead of ending the job.
struct SkipRules {
  bool non_finite = false;  // skip a step whose loss or norm is not finite
  double above_norm = 0;    // skip a step whose norm is this many standard deviations above the mean; 0: none
  int64_t window = 128;     // the steps before it that count
  int64_t max_skipped = 10;  // more skipped steps in the window end the job

  bool any() const { return non_finite || above_norm > 0; }
};

// SkipState is the history of skipped steps that a resumed run restores.
struct SkipState {
  int64_t skipped = 0;            // skipped steps since the beginning
  std::vector<double> norms{};    // NormHistory::values()
  std::vector<int64_t> recent{};  // the skipped ones among the last steps
};

class FiniteGuard {
 public:
  // `groups` cover all ranks of the job, which agree on the check.
  explicit FiniteGuard(parallel::ReduceChain groups, const SkipRules& rules = {})
      : groups_(std::move(groups)), rules_(rules), norms_(rules.window) {}

  // Call it when the gradient norm of step `own.step` is known. `own` holds the flags that this rank sends,
  // `losses` its microbatch losses (0-dim), `scale` their factor (inverse_of). `describe(i)` says where the
  // sequences of microbatch i come from.
  struct Outcome {
    at::Tensor skip;  // the optimizer's flag (0-dim float): 1 if the step is skipped
    // The norm to clip by (0-dim) has the same bits on every rank, so that replicas do not drift apart. On a
    // GPU it is the maximum over the ranks, because NCCL groups may sum in different orders.
    at::Tensor norm;
  };
  Outcome check(const StepFlags& own, const std::vector<at::Tensor>& losses, const at::Tensor& norm,
                const at::Tensor& scale, std::function<std::string(size_t)> describe);

  // Throws Error(kNonFinite) if the step last checked (on a GPU: the step before it) was not finite and no
  // rule skips such steps, or if too many were skipped; Error(kBadData) if it had no valid token. A
  // skipped step is a warning, and on_skip is called. With `wait` a GPU job also reads the last step; used
  // before a save, before a step is logged and at the end of training.
  void raise(bool wait);

  // The flags of all ranks combined, from the newest step that raise() has read.
  const StepFlags& agreed() const { return agreed_; }

  const SkipRules& rules() const { return rules_; }
  int64_t skipped() const { return skipped_; }
  // Called for a skipped step, with the reason.
  std::function<void(int64_t step, const std::string& reason)> on_skip{};

  // Returns the state to save after `step`, which raise(wait) must have read.
  SkipState skips(int64_t step) const {
    return {skipped_, norms_.values(step), {recent_.begin(), recent_.end()}};
  }
  void restore(int64_t step, const SkipState& state);

 private:
  struct StepCheck {
    int64_t step = 0;
    at::Tensor values;  // on the host: [skip, stop, save failed, norm, scale, losses..., excess if norms are
                        // watched]
    DeviceEvent copied;
    std::function<std::string(size_t)> describe;
  };
  void raise(StepCheck& check);
  void leave_out(int64_t step, const std::string& reason);

  parallel::ReduceChain groups_;
  SkipRules rules_;
  NormHistory norms_;
  int64_t skipped_ = 0;
  std::deque<int64_t> recent_;  // skipped steps of the window
  StepCheck current_, previous_;
  StepFlags agreed_;
};

}  // namespace hyperion::trainer
