// What the ranks send each other in every step: how many of its tokens have a label, which of them was asked
// to stop, whose background save has failed.
//
// On a CPU that is one sum over the host group before the step. On a GPU the host waits for no other rank:
// the tokens are added up on the device, and the flags travel with the guard's check
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
  int64_t step = 0;                     // in which they are sent
  StopSignal stop = StopSignal::kNone;  // kTerminate where ranks got different signals
  bool save_failed = false;
};

class StepAgreement {
 public:
  // `save_failed`: whether this rank's background save has.
  StepAgreement(const parallel::ProcessGroups& groups, const parallel::Mesh& mesh, int rank,
                at::Device device, std::function<bool()> save_failed);

  // When signals are about to be caught; `step`: the first one.
  void start(int64_t step);
  // Before the step: the number of valid tokens of all ranks, 0-dim int64 on the device, of which this rank
  // has read `valid_tokens`. None: the ranks have just agreed to stop (on a GPU they do so with a check).
  // Throws Error(kBadData) when there is no valid token; on a GPU FiniteGuard does.
  std::optional<at::Tensor> before_step(int64_t step, int64_t valid_tokens);
  // What this rank's check of the step carries.
  StepFlags flags(int64_t step);
  // Those of the newest check that has been read (FiniteGuard::agreed).
  void read(const StepFlags& flags) { agreed_ = flags; }

  // What all ranks know of each other.
  const StepFlags& agreed() const { return agreed_; }

 private:
  parallel::Communicator& host_;
  parallel::ReduceChain batch_groups_;  // ranks with different batches
  at::Device device_;
  bool counts_;  // false: another rank counts this one's tokens
  std::function<bool()> save_failed_;
  StepFlags agreed_;
};

// The two exchanges. Sums over all ranks; `host` takes CPU tensors. `valid_tokens`: 0 on a rank whose batch
// another rank counts.
struct StepTotals {
  int64_t valid_tokens = 0;
  StepFlags flags;
};
StepTotals exchange_on_host(parallel::Communicator& host, int64_t valid_tokens, const StepFlags& own);
// The number of valid tokens of all ranks, 0-dim int64 on `device`; `groups`: ranks with different batches.
// Waits for nothing on a GPU.
at::Tensor sum_valid_tokens(const parallel::ReduceChain& groups, int64_t valid_tokens, at::Device device);

// What a summed loss is multiplied by: 1 / valid_tokens (0-dim int64) as 0-dim fp32, rounded from fp64.
// Infinite when there is no valid token.
at::Tensor inverse_of(const at::Tensor& valid_tokens);

}  // namespace hyperion::trainer
