#include "data/tokenizer/bpe_merge.h"

#include <random>

#include <catch2/catch.hpp>

namespace hyperion::data {

namespace {

// The definition: again and again, the pair of the lowest rank, the leftmost first.
std::vector<int32_t> merge_by_definition(const MergeTable& table, std::vector<int32_t> symbols) {
  while (true) {
    size_t best = 0;
    MergeTable::Merge merge = MergeTable::kNone;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const MergeTable::Merge here = table.find(symbols[i], symbols[i + 1]);
      if (here.rank < merge.rank) best = i, merge = here;
    }
    if (merge.rank == MergeTable::kNone.rank) return symbols;
    symbols[best] = merge.id;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

}  // namespace

TEST_CASE("the merge table finds what was inserted and keeps the later of two") {
  MergeTable table;
  for (int32_t i = 0; i < 1000; ++i) table.insert(i, 1000 - i, {static_cast<uint32_t>(i), i + 5});
  table.insert(7, 993, {4, 2});
  CHECK(table.find(7, 993).id == 2);
  CHECK(table.find(999, 1).rank == 999);
  CHECK(table.find(1, 1).rank == MergeTable::kNone.rank);
}

TEST_CASE("short and long words merge as the definition says") {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    MergeTable table(40);
    const int letters = 2 + round % 4;
    int32_t next = letters;
    for (uint32_t rank = 0; rank < 40; ++rank, ++next)
      table.insert(static_cast<int32_t>(random() % static_cast<uint32_t>(next)),
                   static_cast<int32_t>(random() % static_cast<uint32_t>(next)), {rank, next});
    WordMerger merger;
    for (const size_t size : {1u, 2u, 3u, 10u, 99u, 100u, 101u, 400u}) {
      std::vector<int32_t> word(size);
      for (int32_t& symbol : word) symbol = static_cast<int32_t>(random() % static_cast<uint32_t>(letters));
      const std::vector<int32_t> expected = merge_by_definition(table, word);
      merger.merge(table, word);
      REQUIRE(word == expected);
    }
  }
}

}  // namespace hyperion::data
