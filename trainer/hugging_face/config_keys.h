// The keys of a config.json (config_keys.def): reads and writes those that are members of ModelArgs, and
// checks that no unsupported key would change the model's results.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "models/args/model_args.h"

namespace hyperion::hugging_face {

// Reads and writes the keys that are members of ModelArgs. Throws Error(kBadData) for missing keys and wrong
// types.
void read_fields(const JsonNode& config, std::string_view model_type, models::ModelArgs& args);
void write_fields(const models::ModelArgs& args, std::string_view model_type, nlohmann::json& config);

// Throws Error(kBadData), naming the key, for an unsupported value that would change the model's results
// (config_keys.def). Returns the unknown keys.
std::vector<std::string> check_config_keys(const JsonNode& config, std::string_view model_type);

}  // namespace hyperion::hugging_face
