#include "parallel/agreement.h"

#include <set>
#include <sstream>

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/rank_list.h"

namespace hyperion::parallel {
namespace {

constexpr size_t kMaxListed = 20;

std::map<std::string, std::string> parse_hashes(const std::string& serialized) {
  std::map<std::string, std::string> hashes;
  std::istringstream lines(serialized);
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    hashes[line.substr(space + 1)] = line.substr(0, space);
  }
  return hashes;
}

// The value that most ranks have; of equally frequent ones that of the lowest rank.
std::string most_common_value(const std::vector<std::string>& values) {
  std::map<std::string, int> counts;
  for (const auto& value : values) ++counts[value];
  std::string best = values.front();
  for (const auto& value : values) {
    if (counts[value] > counts[best]) best = value;
  }
  return best;
}

}  // namespace

std::string serialize_hashes(const Fingerprint& fingerprint) {
  std::string text;
  for (const auto& [key, value] : fingerprint) text += fmt::format("{:016x} {}\n", hash_text(value), key);
  return text;
}

std::string describe_disagreement(const std::vector<std::string>& serialized,
                                  const std::vector<int>& global_ranks) {
  std::vector<std::map<std::string, std::string>> ranks;
  std::set<std::string> keys;
  for (const auto& text : serialized) {
    ranks.push_back(parse_hashes(text));
    for (const auto& [key, hash] : ranks.back()) keys.insert(key);
  }
  std::vector<std::string> lines;
  for (const auto& key : keys) {
    std::vector<std::string> values;
    for (const auto& rank : ranks) {
      const auto found = rank.find(key);
      values.push_back(found == rank.end() ? "absent" : found->second);
    }
    const std::string common = most_common_value(values);
    std::vector<int> differing;
    for (size_t r = 0; r < values.size(); ++r) {
      if (values[r] != common) differing.push_back(global_ranks[r]);
    }
    if (!differing.empty())
      lines.push_back(fmt::format("\n  {}: rank {} differs", key, rank_list(differing)));
  }
  if (lines.empty()) return "";
  const size_t listed = std::min(lines.size(), kMaxListed);
  std::string message = fmt::format(
      "the ranks do not run the same job; start all of them with the same configuration, "
      "binary and data. {} entries differ:{}",
      lines.size(), fmt::join(lines.begin(), lines.begin() + listed, ""));
  if (listed < lines.size()) message += fmt::format("\n  and {} more", lines.size() - listed);
  return message;
}

void require_agreement(Communicator& group, const Fingerprint& fingerprint) {
  if (group.size() == 1) return;
  const std::string own = serialize_hashes(fingerprint);
  const auto hash = static_cast<int64_t>(hash_text(own));
  at::Tensor extremes = at::empty({2}, at::kLong);  // the largest hash, and the complement of the smallest
  auto* extreme = extremes.data_ptr<int64_t>();
  extreme[0] = hash;
  extreme[1] = ~hash;
  group.all_reduce_max(extremes);
  if (extreme[0] == ~extreme[1]) return;
  const std::vector<std::string> texts = group.gather(own);
  const bool first = group.rank() == 0;
  throw_config("{}", group.broadcast(first ? describe_disagreement(texts, group.global_ranks()) : ""));
}

}  // namespace hyperion::parallel
