#include "parallel/agreement.h"

#include <algorithm>

#include <fmt/ranges.h>

#include <ATen/ops/empty.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/pack.h"
#include "base/rank_list.h"

namespace hyperion::parallel {
namespace {

constexpr size_t kMostListed = 20;
constexpr size_t kLongestValue = 80;

std::string shorten_value(const std::string& value) {
  if (value.empty()) return "nothing";
  if (value.size() <= kLongestValue) return value;
  return fmt::format("{}...", value.substr(0, kLongestValue));
}

}  // namespace

Fingerprint differing_entries(const Fingerprint& rank0, const Fingerprint& own) {
  Fingerprint entries;
  for (const auto& [key, value] : own) {
    const auto found = rank0.find(key);
    if (found == rank0.end() || found->second != value) entries[key] = value;
  }
  for (const auto& [key, value] : rank0)
    if (!own.contains(key)) entries[key] = "";
  return entries;
}

std::string describe_differences(const Fingerprint& rank0, const std::vector<DifferingRank>& ranks) {
  std::map<std::string, std::map<std::string, std::vector<int>>> by_key;  // key -> value -> ranks
  for (const DifferingRank& rank : ranks)
    for (const auto& [key, value] : rank.entries) by_key[key][value].push_back(rank.rank);
  std::vector<std::string> lines;
  for (const auto& [key, values] : by_key) {
    const auto found = rank0.find(key);
    std::string line =
        fmt::format("\n  {}: {} on rank 0", key, shorten_value(found == rank0.end() ? "" : found->second));
    for (const auto& [value, which] : values)
      line += fmt::format(", {} on rank {}", shorten_value(value), rank_list(which));
    lines.push_back(std::move(line));
  }
  const size_t listed = std::min(lines.size(), kMostListed);
  std::string message = fmt::format(
      "the ranks do not run the same job; start all of them with the same launcher, configuration, binary "
      "and data. "
      "{} {}:{}",
      lines.size(), lines.size() == 1 ? "entry differs" : "entries differ",
      fmt::join(lines.begin(), lines.begin() + static_cast<ptrdiff_t>(listed), ""));
  if (listed < lines.size()) message += fmt::format("\n  and {} more", lines.size() - listed);
  return message;
}

void require_agreement(Communicator& group, const Fingerprint& fingerprint) {
  if (group.size() == 1) return;
  const std::string own = pack(fingerprint);
  const auto hash = static_cast<int64_t>(hash_text(own));
  at::Tensor extremes = at::empty({2}, at::kLong);  // the largest hash, and the complement of the smallest
  auto* extreme = extremes.data_ptr<int64_t>();
  extreme[0] = hash;
  extreme[1] = ~hash;
  group.all_reduce_max(extremes);
  if (extreme[0] == ~extreme[1]) return;
  const std::vector<std::string> texts = group.gather(own);
  std::vector<DifferingRank> differing;
  for (size_t r = 1; r < texts.size(); ++r) {
    Fingerprint entries = differing_entries(fingerprint, unpack<Fingerprint>(texts[r]));
    if (!entries.empty()) differing.push_back({group.global_ranks()[r], std::move(entries)});
  }
  throw_config("{}", group.broadcast(describe_differences(fingerprint, differing)));
}

}  // namespace hyperion::parallel
