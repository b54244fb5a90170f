// Chooses fused or plain kernels of models/kernels, except for attention and products.
#pragma once

#include "models/args/model_args.h"
#include "trainer/build/float8_conversion.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

// Sets the kernels of the process and logs the choice: fused, unless HYPERION_KERNELS=plain is set or the
// GPU's compute capability is below 8.0. Throws Error(kUsage) if HYPERION_KERNELS is neither auto nor plain.
void choose_kernels(const Float8Device& device);

// Logs, for an MoE model on a GPU, whether libtorch's grouped product multiplies all experts of a layer at
// once, or why not.
void log_expert_products(const models::ModelArgs& args, const config::JobConfig& config,
                         const Float8Device& device);

}  // namespace hyperion::trainer
