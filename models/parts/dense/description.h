// The parameters of a gated feed-forward, in a block of its own or as the shared experts of one.
#pragma once

#include "models/parts/description.h"

namespace hyperion::models {

PartDescription describe_feed_forward(const ModelArgs& args);

// w1, w2 and w3 of a gated feed-forward `hidden` wide. `name`: of the module in its block; `theirs`: of
// Hugging Face's in its block.
std::vector<ParameterShape> gated_matrices(const ModelArgs& args, const std::string& name, int64_t hidden,
                                           const std::string& theirs);

}  // namespace hyperion::models
