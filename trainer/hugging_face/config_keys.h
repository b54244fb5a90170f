// Checks that no unsupported key of a config.json would change the model's results.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"

namespace hyperion::hugging_face {

// Throws Error(kBadData), naming the key, for an unsupported value that would change the model's results
// (config_keys.def). Returns the unknown keys.
std::vector<std::string> check_config_keys(const JsonNode& config, std::string_view model_type);

}  // namespace hyperion::hugging_face
