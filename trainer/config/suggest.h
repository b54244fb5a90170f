// "Did you mean": the known name nearest to a misspelt one.
#pragma once

#include <string>
#include <string_view>

namespace hyperion {

// The configuration key nearest to `name` by edit distance, or the key of the same last part in another
// section; "" when nothing is near. Bounded time for names of any length.
std::string nearest_key(std::string_view name);
// The table nearest to `name`; "" when nothing is near.
std::string nearest_section(std::string_view name);

}  // namespace hyperion
