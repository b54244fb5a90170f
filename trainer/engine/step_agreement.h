// The ranks exchange three facts in every step: the number of valid tokens, whether a signal asks to stop,
// and whether a background save has failed.
//
// On a CPU one all-reduce over the host group before the step carries them. On a GPU the host waits for no
// other rank: the token counts are all-reduced on the device, and the flags travel with the guard's check
// (trainer/engine/finite_guard.h), which the host reads one step later.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

#include "parallel/comm/process_group.h"
#include "parallel/mesh.h"
#include "trainer/runtime/signals.h"

namespace hyperion::trainer {

struct StepFlags {
  int64_t step = 0;                     // the step in which they are sent
  StopSignal stop = StopSignal::kNone;  // kTerminate if ranks got different signals
  bool save_failed = false;
};

class StepAgreement {
 public:
  // `save_failed` says whether this rank's background save has failed.
  StepAgreement(const parallel::ProcessGroups& groups, const parallel::Mesh& mesh, int rank,
                at::Device device, std::function<bool()> save_failed);

  // Call it when signals are about to be caught. `step` is the first step.
  void start(int64_t step);
  // Returns the number of valid tokens of all ranks (0-dim int64 on the device); this rank has read
  // `valid_tokens`. Returns nullopt if the ranks have just agreed to stop (on a GPU they agree by the guard's
  // check instead). Throws Error(kBadData) if there is no valid token; on a GPU FiniteGuard throws it.
  std::optional<at::Tensor> before_step(int64_t step, int64_t valid_tokens);
  // The flags that this rank's check of the step carries.
  StepFlags flags(int64_t step);
  // Takes the flags of the newest check that has been read (FiniteGuard::agreed).
  void read(const StepFlags& flags) { agreed_ = flags; }

  // The newest flags that all ranks have agreed on.
  const StepFlags& agreed() const { return agreed_; }

 private:
  parallel::Communicator& host_;
  parallel::ReduceChain batch_groups_;  // ranks with different batches
  at::Device device_;
  bool counts_;  // false: another rank counts this rank's tokens
  std::function<bool()> save_failed_;
  StepFlags agreed_;
};

// Both functions sum over all ranks. `valid_tokens` is 0 on a rank whose batch another rank counts. `host`
// takes CPU tensors.
struct StepTotals {
  int64_t valid_tokens = 0;
  StepFlags flags;
};
StepTotals exchange_on_host(parallel::Communicator& host, int64_t valid_tokens, const StepFlags& own);
// Returns a 0-dim int64 on `device`; `groups` are the ranks with different batches. On a GPU nothing waits.
at::Tensor sum_valid_tokens(const parallel::ReduceChain& groups, int64_t valid_tokens, at::Device device);

// The factor of a summed loss: 1 / valid_tokens (0-dim int64) as 0-dim fp32, rounded from fp64. It is
// infinite if there is no valid token.
at::Tensor inverse_of(const at::Tensor& valid_tokens);

}  // namespace hyperion::trainer
