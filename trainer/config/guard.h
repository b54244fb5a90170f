// What must hold of a TOML text before toml11 3.7.1 may see it: that parser recurses once a bracket and once
// a part of a dotted key (20,000 of either overflow an 8 MiB stack), and its lists take quadratic time.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace hyperion {

inline constexpr size_t kLargestToml = 256 * 1024;  // bytes

// "LINE:COLUMN: what is wrong", or nullopt for a text that is safe to parse. Counts brackets, dots and commas
// wherever they stand, strings and comments included: an upper bound that no trick with quotes can get
// around.
std::optional<std::string> unsafe_toml(std::string_view text);

}  // namespace hyperion
