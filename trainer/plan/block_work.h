// Counts the kernels and the exchanges of a block's runs.
#pragma once

#include "trainer/plan/step_shape.h"
#include "trainer/plan/step_work.h"

namespace hyperion::trainer {

// Adds the work of `times` runs of the block, forward and backward, each of one microbatch.
// `gradient_passes`: over the fp32 gradients of weights, which later microbatches add to.
void add_block_work(const BlockShape& block, config::RecomputeMode mode, double gradient_passes, double times,
                    StepWork& work);

}  // namespace hyperion::trainer
