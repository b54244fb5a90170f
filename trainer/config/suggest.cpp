#include "trainer/config/suggest.h"

#include <algorithm>

#include "base/nearest.h"
#include "trainer/config/schema.h"

namespace hyperion {
namespace {

constexpr size_t kLongestName = 100;  // a longer one is like no key

std::string_view last_part(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

}  // namespace

std::string nearest_key(std::string_view name) {
  if (name.size() > kLongestName) return "";
  const std::string_view key = last_part(name);
  std::string best;
  size_t best_distance = suggestion_tolerance(key) + 1;
  for (const Section& section : schema()) {
    for (const Option& option : section.options) {
      // In another section the key must be nearly the same, and loses against the same section.
      const bool at_home =
          name.substr(0, name.size() - key.size()) == option.name.substr(0, option.name.rfind('.') + 1);
      const size_t distance =
          at_home ? edit_distance(key, option.key())
                  : std::min(edit_distance(name, option.name), 1 + 2 * edit_distance(key, option.key()));
      if (distance < best_distance) {
        best = option.name;
        best_distance = distance;
      }
    }
  }
  return best;
}

std::string nearest_section(std::string_view name) {
  if (name.size() > kLongestName) return "";
  std::string best;
  size_t best_distance = suggestion_tolerance(name) + 1;
  for (const Section& section : schema()) {
    const size_t distance = edit_distance(name, section.name);
    if (distance < best_distance) {
      best = section.name;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace hyperion
