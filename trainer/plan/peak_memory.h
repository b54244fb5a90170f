// Predicts the most memory that a GPU's rank has allocated at once in a step, by the moments at which it can
// be: the head, the backward of the last block, the end of the backward, and Muon's update. Pure. JobSize
// (trainer/plan/size_estimate.h) is a lower bound; this is an estimate, which may lie to both sides.
#pragma once

#include "models/description.h"
#include "parallel/mesh.h"
#include "trainer/config/job_config.h"
#include "trainer/plan/size_estimate.h"

namespace hyperion::trainer {

// Bytes of one rank at the moment at which they are the most.
struct PeakMemory {
  double states = 0;       // masters, compute copies, optimizer states, averages, Muon's buffers
  double gradients = 0;    // sharded, and unsharded sums and those of the unit in hand
  double gathered = 0;     // gathered weights
  double activations = 0;  // kept for backward
  double working = 0;      // logits, recomputed activations, rows under way, communication buffers
  double reserved = 0;     // what the allocator holds for all of them, by the share that it loses
  double total() const { return states + gradients + gathered + activations + working + reserved; }
};

// Bytes per token that a block keeps from its forward to its backward with its mode of activation
// checkpointing; `mode` kFull: the input alone.
double kept_bytes_per_token(const models::BlockDescription& block, const models::ModelArgs& args,
                            const config::JobConfig& config, const parallel::Mesh& mesh,
                            config::RecomputeMode mode);

// `size`: the lower bound of the same rank; `in_flight`: the most microbatches whose activations it keeps,
// summed over its stages; 1 without a pipeline.
PeakMemory peak_memory(const config::JobConfig& config, const models::ModelArgs& args,
                       const models::ModelDescription& model, const parallel::Mesh& mesh,
                       int64_t microbatches, const JobSize& size, const PipelineShare* share,
                       double in_flight);

// The mode of activation checkpointing of a block: selective checkpointing of every Nth block is full or
// none.
config::RecomputeMode recompute_mode_of(const config::JobConfig& config, int64_t layer);

}  // namespace hyperion::trainer
