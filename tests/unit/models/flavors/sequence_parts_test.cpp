#include "models/args/sequence_parts.h"

#include <algorithm>

#include <catch2/catch.hpp>

namespace hyperion::models {

TEST_CASE("ranks share every sequence, one token on one rank") {
  using Parts = std::vector<SequenceRange>;
  CHECK((sequence_parts(32, {4, 1}) == Parts{{4, 8}, {24, 28}}));
  CHECK((sequence_parts(32, {4, 1, false}) == Parts{{8, 16}}));
  CHECK((sequence_parts(7, {1, 0}) == Parts{{0, 7}}));
  for (const bool head_tail : {true, false})
    for (int ranks = 1; ranks <= 16; ++ranks) {
      CAPTURE(head_tail, ranks);
      const int64_t length = 3 * length_divisor(ranks, head_tail, 1);
      std::vector<int> holders(static_cast<size_t>(length));
      for (int rank = 0; rank < ranks; ++rank) {
        const Parts parts = sequence_parts(length, {ranks, rank, head_tail});
        int64_t tokens = 0;
        for (const SequenceRange& part : parts) {
          tokens += part.size();
          CHECK(part.size() == parts.front().size());
          for (int64_t token = part.first; token < part.end; ++token) ++holders[static_cast<size_t>(token)];
        }
        CHECK(tokens * ranks == length);
      }
      CHECK(std::ranges::all_of(holders, [](int count) { return count == 1; }));
    }
}

TEST_CASE("chunks from start and end give all ranks equally many pairs of query and key") {
  for (const bool head_tail : {true, false})
    for (int ranks = 2; ranks <= 16; ++ranks) {
      CAPTURE(head_tail, ranks);
      const int64_t length = 3 * length_divisor(ranks, head_tail, 1);
      std::vector<int64_t> pairs;
      for (int rank = 0; rank < ranks; ++rank) {
        int64_t& own = pairs.emplace_back(0);
        for (const SequenceRange& part : sequence_parts(length, {ranks, rank, head_tail}))
          for (int64_t query = part.first; query < part.end; ++query) own += query + 1;
      }
      const auto [least, most] = std::ranges::minmax(pairs);
      if (head_tail)
        CHECK(most == least);
      else
        CHECK(most > least * (ranks - 1));  // the last rank's triangle and all before it against the first's
    }
}

TEST_CASE("lengths of parts that ranks cut once more are multiples of a divisor") {
  CHECK(length_divisor(1, true, 4) == 4);
  CHECK(length_divisor(4, true, 2) == 16);
  CHECK(length_divisor(4, false, 2) == 8);
}

}  // namespace hyperion::models
