#include "base/nearest.h"

#include <algorithm>
#include <vector>

namespace hyperion {

size_t edit_distance(std::string_view a, std::string_view b, size_t limit) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) >= limit) return limit;
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    // No later entry is below the smallest of two neighbouring rows.
    if (*std::min_element(row.begin(), row.end()) >= limit &&
        *std::min_element(last.begin(), last.end()) >= limit)
      return limit;
    std::swap(before, last);
    std::swap(last, row);
  }
  return std::min(limit, last[b.size()]);
}

size_t suggestion_tolerance(std::string_view name) {
  return std::max<size_t>(1, (name.size() + 1) / 3);
}

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  if (name.size() > kLongestSuggested) return "";
  std::string_view best;
  size_t best_distance = suggestion_tolerance(name) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(name, candidate, best_distance);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return std::string(best);
}

std::string did_you_mean(std::string_view name) {
  return name.empty() ? "" : "; did you mean " + std::string(name) + "?";
}

}  // namespace hyperion
