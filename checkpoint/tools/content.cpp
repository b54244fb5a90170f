#include "checkpoint/tools/content.h"

#include <algorithm>
#include <tuple>

namespace hyperion::checkpoint {

bool describes_run(const std::string& key) {
  return component_of(key) == kRngComponent || key.starts_with(kLoaderOfRankPrefix) ||
         key == kLoaderRanksKey || key == kTokensOfRankKey || key == kConfigKey;
}

bool Selection::has(const std::string& key) const {
  return key.starts_with(prefix) && (component.empty() || component_of(key) == component) &&
         (all || !describes_run(key));
}

std::vector<std::string> keys_in_file_order(const CheckpointIndex& index, const Selection& only) {
  std::vector<std::string> keys;
  for (const auto& [key, record] : index.tensors)
    if (only.has(key)) keys.push_back(key);
  const auto place_of = [&](const std::string& key) {
    const auto& chunks = index.tensors.at(key).chunks;
    return chunks.empty() ? std::tuple<std::string, uint64_t>()
                          : std::tuple(chunks.front().where.file, chunks.front().where.offset);
  };
  std::ranges::stable_sort(keys, {}, place_of);
  return keys;
}

}  // namespace hyperion::checkpoint
