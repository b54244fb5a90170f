// Describes the parameters of multi-head latent attention.
#pragma once

#include "models/parts/description.h"

namespace hyperion::models {

PartDescription describe_latent_attention(const ModelArgs& args);

}  // namespace hyperion::models
