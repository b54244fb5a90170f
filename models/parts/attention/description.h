// Describes the parameters of plain attention: queries, keys, values, output, and the norms of heads.
#pragma once

#include "models/parts/description.h"

namespace hyperion::models {

PartDescription describe_attention(const ModelArgs& args);

}  // namespace hyperion::models
