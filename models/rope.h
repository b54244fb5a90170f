// The angles of rotary position embeddings (RoFormer, arXiv 2104.09864), with Llama 3.1's frequency scaling.
#pragma once

#include <ATen/core/Tensor.h>

#include "models/flavors/model_args.h"

namespace hyperion::models {

// Rotation frequencies f_j = theta^(-2j/head_dim), fp32 [head_dim/2]. With rope_scaling (Llama 3.1: factor 8,
// low 1, high 4, original length 8192), wavelengths above length/low are stretched by the factor, those below
// length/high are kept, and those between are blended linearly in length/wavelength.
at::Tensor rope_frequencies(const ModelArgs& args);

}  // namespace hyperion::models
