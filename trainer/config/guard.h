// Limits of a TOML text that are checked before toml11 3.7.1 parses it: that parser recurses for each bracket
// and each part of a dotted key (20,000 of either overflow an 8 MiB stack), and its lists take quadratic
// time.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace hyperion::config {

inline constexpr size_t kLargestToml = 256 * 1024;  // bytes

// "LINE:COLUMN: what is wrong", or nullopt for a text that is safe to parse. Counts brackets, dots and commas
// wherever they stand, strings and comments included, so that no quoting can bypass the limits.
std::optional<std::string> toml_guard_problem(std::string_view text);

}  // namespace hyperion::config
