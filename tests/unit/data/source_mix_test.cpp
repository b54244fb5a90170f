#include "data/source_mix.h"

#include <cmath>
#include <random>

#include <catch2/catch.hpp>

namespace hyperion::data {
namespace {

// The largest distance of a source from its share after any of `count` sequences, in sequences.
double largest_deviation(SourceMix& mix, int count) {
  const size_t sources = mix.shares().size();
  std::vector<int64_t> credits(sources);  // counted here once more
  int64_t largest = 0;
  for (int n = 0; n < count; ++n) {
    const size_t drawn = mix.draw();
    for (size_t i = 0; i < sources; ++i) {
      credits[i] += mix.shares()[i] - (i == drawn ? SourceMix::kWhole : 0);
      largest = std::max(largest, std::abs(credits[i]));
    }
  }
  return static_cast<double>(largest) / SourceMix::kWhole;
}

}  // namespace

TEST_CASE("after any number of sequences every source is within 1 - 1/(2k-2) of its share") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const size_t sources = 2 + random() % (round % 10 == 0 ? 60 : 6);
    std::vector<double> weights(sources);
    for (double& weight : weights) {
      const double uniform = static_cast<double>(random() >> 11) / (1ull << 53);
      weight = round % 3 == 0 ? std::pow(10.0, 8 * uniform - 4) : uniform + 1e-6;
    }
    SourceMix mix(weights);
    CAPTURE(round, sources);
    REQUIRE(largest_deviation(mix, round < 3 ? 300000 : 3000) <= 1 - 1 / (2.0 * sources - 2) + 1e-12);
  }
}

TEST_CASE("weights are exact over long runs and in any unit") {
  SourceMix mix(std::vector<double>{0.7, 0.2, 0.1});
  for (int i = 0; i < 1000000; ++i) mix.draw();
  CHECK(mix.drawn() == std::vector<uint64_t>{700000, 200000, 100000});
  SourceMix tokens(std::vector<double>{7e12, 2e12, 1e12});
  CHECK(tokens.shares() == mix.shares());
  SourceMix one(std::vector<double>{3});
  CHECK((one.draw() == 0 && one.draw() == 0));
}

TEST_CASE("a source of weight 0 gives nothing, and one of a tiny weight counts as a source") {
  SourceMix mix(std::vector<double>{0, 1, 1e-30, 1});
  CHECK(largest_deviation(mix, 10000) <= 0.75);
  CHECK(mix.drawn()[0] == 0);
  CHECK(mix.drawn()[2] <= 1);
}

TEST_CASE("a restored mix goes on as the one that was saved, and another mix's state is refused") {
  const std::vector<double> weights = {0.55, 0.25, 0.2};
  SourceMix original(weights);
  for (int i = 0; i < 1234; ++i) original.draw();
  SourceMix restored(weights);
  REQUIRE(restored.restore(original.drawn()));
  for (int i = 0; i < 1000; ++i) REQUIRE(original.draw() == restored.draw());
  CHECK_FALSE(restored.restore({600, 100, 300}));
  CHECK_FALSE(restored.restore({1, 1}));
  CHECK_FALSE(restored.restore({~0ull, ~0ull, 2}));
  CHECK(restored.drawn() == original.drawn());
}

}  // namespace hyperion::data
