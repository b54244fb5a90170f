// Predicts the memory that a GPU's rank reserves: it replays the tensors of the steps, in the order of the
// engine's schedule, in a model of libtorch's allocator. Pure. JobSize (trainer/plan/size_estimate.h) is a
// lower bound; this is an estimate, which may lie to both sides.
#pragma once

#include "models/description.h"
#include "parallel/mesh.h"
#include "trainer/config/job_config.h"
#include "trainer/engine/schedule.h"
#include "trainer/plan/size_estimate.h"

namespace hyperion::trainer {

// Bytes of one rank at the moment at which tensors have the most.
struct PeakMemory {
  double states = 0;       // masters, compute copies, optimizer states, averages, Muon's buffers
  double gradients = 0;    // sharded, and unsharded sums and those of the unit in hand
  double gathered = 0;     // gathered weights
  double activations = 0;  // kept for backward
  double working = 0;      // logits, recomputed activations, rows under way, communication buffers
  double reserved = 0;     // what the allocator holds besides: freed blocks that later tensors did not fit
  double total() const { return states + gradients + gathered + activations + working + reserved; }
};

// `size`: the lower bound of the same rank, whose states count. `schedule`: the actions of the rank's step.
// Ends as soon as more than `limit` bytes are reserved, and then returns those.
PeakMemory peak_memory(const config::JobConfig& config, const models::ModelArgs& args,
                       const models::ModelDescription& model, const parallel::Mesh& mesh, const JobSize& size,
                       const Schedule& schedule, double limit);

}  // namespace hyperion::trainer
