#include "data/document_order.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "base/philox.h"

namespace hyperion::data {

namespace {

std::vector<uint64_t> all(const Permutation& permutation, uint64_t size) {
  std::vector<uint64_t> values(size);
  for (uint64_t i = 0; i < size; ++i) values[i] = permutation(i);
  return values;
}

}  // namespace

TEST_CASE("a permutation holds every index once at any size") {
  for (const uint64_t size : {1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 1000, 4097, 100003}) {
    CAPTURE(size);
    std::vector<uint64_t> values = all(Permutation(size, 42, 3, 1, true), size);
    if (size > 60) CHECK_FALSE(std::is_sorted(values.begin(), values.end()));
    std::sort(values.begin(), values.end());
    std::vector<uint64_t> expected(size);
    std::iota(expected.begin(), expected.end(), 0);
    CHECK(values == expected);
  }
}

TEST_CASE("a permutation depends on seed and epoch and stream and nothing else") {
  const auto base = all(Permutation(500, 1, 0, 0, true), 500);
  CHECK(base == all(Permutation(500, 1, 0, 0, true), 500));
  CHECK(base != all(Permutation(500, 2, 0, 0, true), 500));
  CHECK(base != all(Permutation(500, 1, 1, 0, true), 500));
  CHECK(base != all(Permutation(500, 1, 0, 1, true), 500));
}

TEST_CASE("a permutation is a Feistel network of Philox rounds, walked until the value is inside") {
  for (const uint64_t size : {2, 5, 63, 64, 1000, 100003}) {
    CAPTURE(size);
    const int half = (std::bit_width(size - 1) + 1) / 2;
    const uint64_t mask = (uint64_t{1} << half) - 1, seed = 0x123456789ABCDEF, epoch = 3, stream = 7;
    const auto walk = [&](uint64_t value) {
      do {
        uint64_t left = value >> half, right = value & mask;
        for (uint64_t round = 0; round < 8; ++round)
          left = std::exchange(
              right, left ^ (philox4x32(seed, round << 32 | right, epoch << 32 | stream)[0] & mask));
        value = left << half | right;
      } while (value >= size);
      return value;
    };
    std::vector<uint64_t> values(size), expected(size);
    for (uint64_t i = 0; i < size; ++i) expected[i] = walk(i);
    Permutation(size, seed, epoch, stream, true).fill(0, values);
    CHECK(values == expected);
  }
}

// A change of this order would silently change the data of resumed jobs.
TEST_CASE("the order of ten documents is the recorded one") {
  CHECK(all(document_order(10, 0, 0, 42, 0, true), 10) ==
        std::vector<uint64_t>{1, 5, 7, 6, 4, 8, 2, 9, 3, 0});
}

TEST_CASE("without shuffling the order is that of the files") {
  CHECK(all(part_order(5, 3, 9, 2, false), 5) == std::vector<uint64_t>{0, 1, 2, 3, 4});
}

TEST_CASE("every order of three documents comes up about equally often") {
  std::map<std::vector<uint64_t>, int> counts;
  for (uint64_t epoch = 0; epoch < 6000; ++epoch) ++counts[all(Permutation(3, 7, epoch, 1, true), 3)];
  CHECK(counts.size() == 6);
  for (const auto& [order, count] : counts) CHECK(std::abs(count - 1000) < 150);  // 5 standard deviations
}

TEST_CASE("a very large permutation stays in range") {
  const uint64_t size = (uint64_t{1} << 40) + 3;
  const Permutation permutation(size, 1, 0, 0, true);
  for (uint64_t i = 0; i < 100; ++i) CHECK(permutation(size - 1 - i) < size);
}

}  // namespace hyperion::data
