// JSON that comes from outside, read strictly and with bounded memory.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace hyperion {

// Throws Error(kBadData) naming `name` and the place unless `text` is one JSON value in UTF-8 with no key
// twice in one object, at most `max_depth` levels of nesting and at most 4 million values, and the values
// take at most 1 MiB and `max_multiple` times the memory of the text (0: whatever they take; "[{},{}]" takes
// 30 times).
nlohmann::json parse_json(std::string_view text, const std::string& name, size_t max_depth = 32,
                          size_t max_multiple = 0);

}  // namespace hyperion
