// Describes the parameters of a mixture of experts: the router's gate, the stacks of experts, and the shared
// experts.
#pragma once

#include "models/parts/description.h"

namespace hyperion::models {

PartDescription describe_experts(const ModelArgs& args);

}  // namespace hyperion::models
