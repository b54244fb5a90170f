// Declares the JSON types of base/json.h for headers whose readers need no JSON: nlohmann's header takes a
// second to compile.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace hyperion {
class JsonNode;
}
