// The resolved configuration as text.
#pragma once

#include <string>

#include "trainer/config/load.h"

namespace hyperion::config {

// TOML with every key, in the schema's order; the end of each line says where the value came from. Unset keys
// are comments. Reading it again gives the same configuration.
std::string to_toml(const ResolvedConfig& resolved);

// The same values as JSON, one object per table; unset keys are null.
std::string to_json(const JobConfig& config);

}  // namespace hyperion::config
