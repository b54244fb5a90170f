#include "app/report/step_buckets.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <catch2/catch.hpp>

namespace hyperion::report {

TEST_CASE("Buckets keep the smallest, the largest and the mean value of their steps") {
  StepBuckets buckets(4);
  for (int64_t step = 0; step < 8; ++step) buckets.add(step, {{0, step == 5 ? 100.0 : 1.0}});
  CHECK(buckets.width() == 2);
  REQUIRE(buckets.buckets().size() == 4);
  const auto& bucket = buckets.buckets().at(2);  // steps 4 and 5
  CHECK(bucket.steps.smallest == 4);
  CHECK(bucket.steps.largest == 5);
  CHECK(bucket.steps.mean() == 4.5);
  CHECK(bucket.range(0).smallest == 1);
  CHECK(bucket.range(0).largest == 100);
  CHECK(bucket.range(0).mean() == 50.5);
  buckets.limit(2);
  CHECK(buckets.width() == 4);
  CHECK(buckets.buckets().at(1).range(0).largest == 100);
}

TEST_CASE("A million rows stay within the buckets and lose no extreme value") {
  StepBuckets buckets(1000);
  for (int64_t step = 1; step <= 1000000; ++step)
    buckets.add(step, {{0, step == 777777 ? -1.0 : step == 123456 ? 9.0 : 2.0}, {1, 3.0}});
  CHECK(buckets.buckets().size() <= 1000);
  CHECK(buckets.buckets().size() > 400);
  double smallest = INFINITY, largest = -INFINITY;
  uint64_t rows = 0;
  for (const auto& [index, bucket] : buckets.buckets()) {
    smallest = std::min(smallest, bucket.range(0).smallest);
    largest = std::max(largest, bucket.range(0).largest);
    rows += bucket.steps.count;
  }
  CHECK(smallest == -1);
  CHECK(largest == 9);
  CHECK(rows == 1000000);
}

TEST_CASE("Buckets do not depend on the order of the rows") {
  std::vector<int64_t> steps;
  for (int64_t step = 1; step < 5000; step += 7) steps.push_back(step);
  const auto content = [](const std::vector<int64_t>& order) {
    StepBuckets buckets(50);
    for (const int64_t step : order) buckets.add(step, {{0, static_cast<double>(step % 13)}});
    std::vector<std::vector<double>> rows;
    for (const auto& [index, bucket] : buckets.buckets())
      rows.push_back({static_cast<double>(index), bucket.steps.mean(), bucket.range(0).mean(),
                      bucket.range(0).smallest, bucket.range(0).largest});
    return rows;
  };
  const auto ascending = content(steps);
  std::reverse(steps.begin(), steps.end());
  CHECK(content(steps) == ascending);
  std::shuffle(steps.begin(), steps.end(), std::mt19937(1));
  CHECK(content(steps) == ascending);
}

TEST_CASE("Values that are not finite are counted and change no mean") {
  StepBuckets buckets(1);
  buckets.add(1, {{0, NAN}});
  buckets.add(2, {{0, 4.0}});
  buckets.add(3, {{0, INFINITY}});
  const auto& bucket = buckets.buckets().begin()->second;
  CHECK(bucket.range(0).mean() == 4);
  CHECK(bucket.values[0].non_finite == 2);
  CHECK(bucket.range(1).count == 0);
  CHECK(buckets.has(0));
  CHECK_FALSE(buckets.has(1));
}

TEST_CASE("Steps far apart take few buckets") {
  StepBuckets buckets(10);
  for (int power = 0; power <= 53; ++power) buckets.add(int64_t{1} << power, {{0, 1.0}});
  CHECK(buckets.buckets().size() <= 10);
}

}  // namespace hyperion::report
