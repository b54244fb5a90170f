#include "base/rank_list.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace hyperion {

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string rank_list(std::span<const int> ranks) {
  constexpr size_t kListed = 8;
  if (ranks.size() <= kListed) return fmt::format("{}", fmt::join(ranks, " "));
  const int step = ranks[1] - ranks[0];
  const bool even =
      std::ranges::adjacent_find(ranks, [step](int a, int b) { return b - a != step; }) == ranks.end();
  if (even && step == 1) return fmt::format("{}..{} ({} ranks)", ranks.front(), ranks.back(), ranks.size());
  if (even) return fmt::format("{} {} .. {} ({} ranks)", ranks[0], ranks[1], ranks.back(), ranks.size());
  return fmt::format("{} and {} more", fmt::join(ranks.first(kListed), " "), ranks.size() - kListed);
}

}  // namespace hyperion
