#include "trainer/config/suggest.h"

#include <algorithm>
#include <vector>

#include "trainer/config/schema.h"

namespace hyperion {
namespace {

constexpr size_t kLongestName = 100;  // a longer one is like no key

// Insertions, deletions, substitutions and swaps of neighbours that turn one word into the other.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

// A third of the letters may differ, one at least.
size_t tolerance(std::string_view name) {
  return std::max<size_t>(1, (name.size() + 1) / 3);
}

std::string_view last_part(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

}  // namespace

std::string nearest_key(std::string_view name) {
  if (name.size() > kLongestName) return "";
  const std::string_view key = last_part(name);
  std::string best;
  size_t best_distance = tolerance(key) + 1;
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
  size_t best_distance = tolerance(name) + 1;
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
