// Describes the parameters of a gated feed-forward, which is a dense feed-forward part or the shared experts.
#pragma once

#include "models/parts/description.h"

namespace hyperion::models {

PartDescription describe_feed_forward(const ModelArgs& args);

// Describes w1, w2 and w3 of a gated feed-forward of width `hidden`. `name` is the module's name in its
// block, `theirs` is Hugging Face's name of it.
std::vector<ParameterShape> gated_matrices(const ModelArgs& args, const std::string& name, int64_t hidden,
                                           const std::string& theirs);

}  // namespace hyperion::models
