// "Did you mean": the known name nearest to a misspelt one.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace hyperion {

// Insertions, deletions, substitutions and swaps of neighbours that turn one word into the other; `limit` as
// soon as it is known to be at least that.
size_t edit_distance(std::string_view a, std::string_view b,
                     size_t limit = std::numeric_limits<size_t>::max());

// How many letters of `name` may differ in a suggestion: a third, one at least.
size_t suggestion_tolerance(std::string_view name);

// The candidate nearest to `name`, the first of several; "" when none is near. Names longer than
// kLongestSuggested are like no other.
inline constexpr size_t kLongestSuggested = 200;
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

// "; did you mean NAME?", or "" for "".
std::string did_you_mean(std::string_view name);

}  // namespace hyperion
