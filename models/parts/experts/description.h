// The parameters of a mixture of experts: the router's gate, the stacks of the experts, and the shared ones.
#pragma once

#include "models/parts/description.h"

namespace hyperion::models {

PartDescription describe_experts(const ModelArgs& args);

}  // namespace hyperion::models
