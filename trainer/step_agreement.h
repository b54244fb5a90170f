// What the ranks tell each other in every step: how many of its tokens have a label, which of them was asked
// to stop, whose background save has failed.
//
// On a CPU that is one sum over the host group before the step. On a GPU the host waits for no other rank:
// the tokens are added up on the device, and the flags travel with the guard's verdict
// (trainer/finite_guard.h), which the host reads one step later.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "parallel/communicator.h"
#include "trainer/signals.h"

namespace hyperion::trainer {

struct StepFlags {
  int64_t step = 0;                     // in which they are sent
  StopSignal stop = StopSignal::kNone;  // kTerminate where ranks got different signals
  bool save_failed = false;
};

struct StepTotals {
  int64_t valid_tokens = 0;
  StepFlags flags;
};
// Sums over all ranks; `host` takes CPU tensors. `valid_tokens`: 0 on a rank whose batch another rank counts.
StepTotals exchange_on_host(parallel::Communicator& host, int64_t valid_tokens, const StepFlags& own);

// The number of valid tokens of all ranks, 0-dim int64 on `device`; `groups`: ranks with different batches.
// Waits for nothing on a GPU.
at::Tensor sum_valid_tokens(const parallel::ReduceChain& groups, int64_t valid_tokens, at::Device device);

// What a summed loss is multiplied by: 1 / valid_tokens (0-dim int64) as 0-dim fp32, rounded from fp64.
// Infinite when there is no valid token.
at::Tensor loss_scale(const at::Tensor& valid_tokens);

}  // namespace hyperion::trainer
