#include "base/rank_list.h"

#include <numeric>
#include <vector>

#include <catch2/catch.hpp>

namespace hyperion {
namespace {

std::vector<int> every(int step, int count) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(i * step);
  return ranks;
}

}  // namespace

TEST_CASE("few ranks are all named") {
  CHECK(rank_list(std::vector<int>{}) == "");
  CHECK(rank_list(std::vector{3}) == "3");
  CHECK(rank_list(every(1, 8)) == "0 1 2 3 4 5 6 7");
}

TEST_CASE("many ranks are named by their rule or by the first of them") {
  CHECK(rank_list(every(1, 1024)) == "0..1023 (1024 ranks)");
  CHECK(rank_list(every(8, 128)) == "0 8 .. 1016 (128 ranks)");
  std::vector<int> odd = {1, 3, 4, 9, 10, 13, 17, 20};
  for (int rank = 100; rank < 16'384; ++rank) odd.push_back(rank);
  CHECK(rank_list(odd) == "1 3 4 9 10 13 17 20 and 16284 more");
  CHECK(rank_list(every(1, 9)) == "0..8 (9 ranks)");
}

}  // namespace hyperion
