// Describes the parameters of plain attention: queries, keys, values, output, the norms of heads, and sinks.
#pragma once

#include "models/parts/description.h"

namespace hyperion::models {

PartDescription describe_attention(const ModelArgs& args, int64_t layer);

}  // namespace hyperion::models
