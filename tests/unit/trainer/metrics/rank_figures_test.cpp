#include "trainer/metrics/rank_figures.h"

#include <algorithm>
#include <map>

#include <catch2/catch.hpp>

#include "base/pack.h"

namespace hyperion::metrics {
namespace {

std::vector<RankFigures> working(const std::vector<double>& seconds) {
  std::vector<RankFigures> ranks;
  for (const double of_rank : seconds) ranks.push_back({of_rank, {}});
  return ranks;
}

std::vector<RankPlace> places(size_t ranks) {
  std::vector<RankPlace> places;
  for (size_t rank = 0; rank < ranks; ++rank)
    places.push_back({"n" + std::to_string(rank / 2), "0000:0" + std::to_string(rank % 2) + ":00.0"});
  return places;
}

std::map<std::string, double> metrics_of(const std::vector<RankFigures>& ranks) {
  const MetricList list = rank_metrics(ranks);
  return {list.begin(), list.end()};
}

}  // namespace

TEST_CASE("the slowest rank is compared with the median of all and of two with the other one") {
  auto metrics = metrics_of(working({1.0, 1.1, 2.0, 1.2, 0.9}));
  CHECK(metrics["stragglers/slowest_rank"] == 2);
  CHECK(metrics["stragglers/own_time_max(s)"] == 2.0);
  CHECK(metrics["stragglers/own_time_median(s)"] == 1.1);
  CHECK(metrics["stragglers/slowest_over_median"] == 2.0 / 1.1);
  CHECK(metrics_of(working({3.0, 1.0}))["stragglers/slowest_over_median"] == 3.0);
  CHECK(metrics_of(working({0, 0}))["stragglers/slowest_over_median"] == 1);
  CHECK(rank_metrics(working({3.0})).empty());
}

TEST_CASE("the bubble of a pipeline is the time until its last rank is done in which ranks do not work") {
  const auto rank = [](double schedule, double waited) {
    return RankFigures{.schedule_seconds = schedule, .transfer_wait_seconds = waited};
  };
  const auto found = [](const std::vector<RankFigures>& ranks, const std::vector<int>& stages) {
    const MetricList list = pipeline_metrics(ranks, stages, /*planned_bubble=*/0.25);
    return std::map<std::string, double>(list.begin(), list.end());
  };
  // Works 6 of 10 s, 8 of 8 (and is done 2 s before the others), 6 of 10, 9 of 9.
  auto metrics = found({rank(10, 4), rank(8, 0), rank(10, 4), rank(9, 0)}, {0, 1, 0, 1});
  CHECK(metrics["pipeline/bubble"] == Approx(1 - 29.0 / 40));
  CHECK(metrics["pipeline/planned_bubble"] == 0.25);
  CHECK(metrics["pipeline/slowest_rank"] == 1);
  CHECK(metrics["pipeline/slowest_over_mean"] == Approx(8.5 / 7.25));
  metrics = found({rank(0, 0), rank(0, 0)}, {0, 1});
  CHECK(metrics["pipeline/bubble"] == 0);
  CHECK(metrics["pipeline/slowest_over_mean"] == 1);
}

TEST_CASE("counters of GPUs are sums and extremes over the ranks that have them") {
  std::vector<RankFigures> ranks = working({1, 1, 1});
  ranks[0].gpu =
      GpuCounters{.ecc_corrected = 2, .throttled = 0x48, .sm_mhz = 1300, .temperature = 60, .watts = 650};
  ranks[2].gpu = GpuCounters{
      .ecc_corrected = 3, .ecc_uncorrected = 1, .throttled = 0x20, .sm_mhz = 900, .temperature = 91};
  auto metrics = metrics_of(unpack<std::vector<RankFigures>>(pack(ranks)));
  CHECK(metrics["gpu/ecc_corrected"] == 5);
  CHECK(metrics["gpu/ecc_uncorrected"] == 1);
  CHECK_FALSE(metrics.contains("gpu/remapped_rows"));
  CHECK(metrics["gpu/throttled_ranks/thermal"] == 2);
  CHECK(metrics["gpu/throttled_ranks/power_brake"] == 0);
  CHECK(metrics["gpu/throttled_ranks/hw_slowdown"] == 1);
  CHECK(metrics["gpu/min_sm_clock(MHz)"] == 900);
  CHECK(metrics["gpu/max_temperature(C)"] == 91);
  CHECK(metrics["gpu/max_power(W)"] == 650);
  const MetricList without = rank_metrics(working({1, 1}));
  CHECK(std::ranges::none_of(without, [](const auto& metric) { return metric.first.starts_with("gpu/"); }));
}

TEST_CASE("a rank that is slow in five logged steps in a row is named once in a hundred") {
  RankWarnings warnings(places(4));
  const auto slow = working({1.0, 1.02, 1.0, 1.3}), even = working({1.0, 1.05, 1.0, 1.09});
  const auto logs = [&](const std::vector<RankFigures>& ranks, int count) {
    std::vector<std::string> said;
    for (int step = 1; step <= count; ++step)
      for (const std::string& warning : warnings.add(step, ranks)) said.push_back(warning);
    return said;
  };
  CHECK(logs(slow, 4).empty());
  CHECK(logs(even, 1).empty());
  CHECK(logs(slow, 4).empty());
  const auto said = logs(slow, 100);
  REQUIRE(said.size() == 1);
  CHECK_THAT(said[0],
             Catch::StartsWith("rank 3 on n1, GPU 0000:01:00.0: its own work of step 1 took 1.300 s, "
                               "30 % more than the median of 1.000 s") &&
                 Catch::Contains("last 5 logged steps") && Catch::Contains("nvidia-smi"));
  CHECK(logs(slow, 1).size() == 1);
  CHECK(logs(working({0.001, 0.001, 0.001, 0.004}), 10).empty());  // noise of a host
}

TEST_CASE("throttling and memory errors are warned of when they begin and when they get worse") {
  RankWarnings warnings(places(2));
  std::vector<RankFigures> ranks = working({1, 1});
  const auto said = [&](const GpuCounters& counters) {
    ranks[1].gpu = counters;
    std::string all;
    for (const std::string& warning : warnings.add(7, ranks)) all += warning;
    return all;
  };
  CHECK(said({.ecc_corrected = 0, .ecc_uncorrected = 0, .throttled = 0}).empty());
  CHECK_THAT(said({.throttled = 0x40}),
             Catch::StartsWith("rank 1 on n0, GPU 0000:01:00.0: clocks are throttled (thermal)"));
  CHECK(said({.throttled = 0x20}).empty());
  CHECK(said({}).empty());
  CHECK_THAT(said({.throttled = 0xc0}), Catch::Contains("throttled (power_brake)"));
  CHECK_THAT(said({.ecc_corrected = 1}), Catch::Contains(": 1 corrected memory (ECC) error since"));
  CHECK(said({.ecc_corrected = 9}).empty());
  CHECK_THAT(said({.ecc_corrected = 10}), Catch::Contains("10 corrected"));
  CHECK_THAT(said({.ecc_uncorrected = 1}), Catch::Contains("1 uncorrected memory (ECC) error since"));
  CHECK(said({.ecc_uncorrected = 1}).empty());
  CHECK_THAT(said({.ecc_uncorrected = 2, .remapped_rows = 1}),
             Catch::Contains("2 uncorrected") && Catch::Contains("1 remapped row"));
}

TEST_CASE("many warnings of one step are named up to eight and counted") {
  RankWarnings warnings(places(20));
  std::vector<RankFigures> ranks = working(std::vector<double>(20, 1));
  for (RankFigures& rank : ranks) rank.gpu = GpuCounters{.throttled = 0x80};
  const auto said = warnings.add(1, ranks);
  REQUIRE(said.size() == 9);
  CHECK_THAT(said[8], Catch::StartsWith("12 more warnings"));
}

}  // namespace hyperion::metrics
