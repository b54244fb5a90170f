#include "parallel/job/fingerprint.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "base/rank_list.h"

namespace hyperion::parallel {
namespace {

constexpr size_t kMaxListed = 20;
constexpr size_t kMaxValue = 80;

std::string shorten_value(const std::string& value) {
  if (value.empty()) return "nothing";
  if (value.size() <= kMaxValue) return value;
  return fmt::format("{}...", value.substr(0, kMaxValue));
}

}  // namespace

Fingerprint differing_entries(const Fingerprint& rank0, const Fingerprint& local) {
  Fingerprint entries;
  for (const auto& [key, value] : local) {
    const auto entry = rank0.find(key);
    if (entry == rank0.end() || entry->second != value) entries[key] = value;
  }
  for (const auto& [key, value] : rank0)
    if (!local.contains(key)) entries[key] = "";
  return entries;
}

std::string describe_differences(const Fingerprint& rank0, const std::vector<DifferingRank>& ranks) {
  std::map<std::string, std::map<std::string, std::vector<int>>> by_key;  // key -> value -> ranks
  for (const DifferingRank& rank : ranks)
    for (const auto& [key, value] : rank.entries) by_key[key][value].push_back(rank.rank);
  std::vector<std::string> lines;
  for (const auto& [key, values] : by_key) {
    const auto entry = rank0.find(key);
    std::string line =
        fmt::format("\n  {}: {} on rank 0", key, shorten_value(entry == rank0.end() ? "" : entry->second));
    for (const auto& [value, which] : values)
      line += fmt::format(", {} on rank {}", shorten_value(value), rank_list(which));
    lines.push_back(std::move(line));
  }
  const size_t listed = std::min(lines.size(), kMaxListed);
  std::string message = fmt::format(
      "the ranks do not run the same job; start all of them with the same launcher, configuration, binary "
      "and data. {} {}:{}",
      lines.size(), lines.size() == 1 ? "entry differs" : "entries differ",
      fmt::join(lines.begin(), lines.begin() + static_cast<ptrdiff_t>(listed), ""));
  if (listed < lines.size()) message += fmt::format("\n  and {} more", lines.size() - listed);
  return message;
}

}  // namespace hyperion::parallel
