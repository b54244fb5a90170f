// Whether the kernels of models/kernels other than attention and products are fused or plain.
#pragma once

#include "models/args/model_args.h"
#include "trainer/build/float8_conversion.h"
#include "trainer/config/job_config.h"

namespace hyperion::trainer {

// Settles for the whole process which run: the fused ones, unless the environment has HYPERION_KERNELS=plain
// or the GPU has a compute capability below 8.0; logs it. Throws Error(kUsage) for another value than auto or
// plain.
void choose_kernels(const Float8Device& device);

// For a model with experts on a GPU: whether libtorch multiplies all of a layer at once, or why not.
void log_expert_products(const models::ModelArgs& args, const config::JobConfig& config,
                         const Float8Device& device);

}  // namespace hyperion::trainer
