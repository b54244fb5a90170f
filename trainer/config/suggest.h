// "Did you mean": the known name nearest to a misspelt one.
#pragma once

#include <string>
#include <string_view>

namespace hyperion::trainer {

// The configuration key that was meant by `name`: one with the same last part in another section ("steps"),
// else what other programs call so ("batch_size"), else the nearest by edit distance; "" when nothing is
// near. Bounded time for names of any length.
std::string nearest_key(std::string_view name);
// The table nearest to `name`; "" when nothing is near.
std::string nearest_section(std::string_view name);

}  // namespace hyperion::trainer
