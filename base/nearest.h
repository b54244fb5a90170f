// Finds the known name nearest to a misspelt one, for "did you mean".
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace hyperion {

// The number of insertions, deletions, substitutions and swaps of neighbours that turn one word into the
// other; `limit` as soon as it is known to be at least that.
size_t edit_distance(std::string_view a, std::string_view b,
                     size_t limit = std::numeric_limits<size_t>::max());

// The number of letters of `name` that may differ in a suggestion: a third, at least one.
size_t suggestion_tolerance(std::string_view name);

// The candidate nearest to `name` (the first of several); "" if none is near, or if `name` is longer than
// kLongestSuggested.
inline constexpr size_t kLongestSuggested = 200;
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

// "; did you mean NAME?", or "" for "".
std::string did_you_mean(std::string_view name);

}  // namespace hyperion
