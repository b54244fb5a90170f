// Which keys of a config.json mean something here, and which of the others would change what a model
// computes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace hyperion::hugging_face {

// Throws Error(kBadData), naming the key, for a value that changes what the model computes and is not
// honoured (config_keys.def). Returns the other keys of which nothing is known.
std::vector<std::string> check_config_keys(const JsonNode& config, std::string_view model_type);

}  // namespace hyperion::hugging_face
