// Counts the kernels and the exchanges of one block and microbatch.
#pragma once

#include "trainer/plan/step_work.h"

namespace hyperion::trainer {

// The facts of a job that the work of its blocks depends on.
struct BlockSetting {
  const config::JobConfig& config;
  const models::ModelArgs& args;
  double tokens = 0;           // of a microbatch on this rank, before tensor parallel ranks share them
  double tensor = 1;           // tensor parallel ranks
  double context = 1;          // context parallel ranks
  double experts = 1;          // ranks that shard the experts
  double expert_nodes = 1;     // nodes of them, if a token travels once to each
  double expert_tensor = 1;    // ranks that shard each expert
  double gradient_passes = 1;  // over the fp32 gradients of weights, which later microbatches add to
  double element = 2;          // bytes of an element of activations and gathered weights
  config::RecomputeMode mode;  // of this block
};

// Adds the work of `times` runs of the block, forward and backward.
void add_block_work(const models::BlockDescription& block, const BlockSetting& setting, double times,
                    StepWork& work);

// Returns the mean number of nodes, of `nodes`, that hold experts of a token.
double nodes_of_token(const models::ModelArgs& args, double nodes);

// Returns whether a weight of these global dimensions is multiplied in FP8.
bool multiplies_in_float8(const models::ParameterShape& shape, const config::JobConfig& config,
                          std::string_view module);

}  // namespace hyperion::trainer
