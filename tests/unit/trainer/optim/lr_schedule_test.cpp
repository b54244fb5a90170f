#include "trainer/optim/lr_schedule.h"

#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace hyperion::optim {

namespace {

LrSchedule curve(int64_t total, int64_t warmup, std::optional<double> ratio, config::DecayType type,
                 double floor) {
  const config::JobConfig::LrScheduler options = {.warmup_steps = warmup,
                                                  .total_steps = total,
                                                  .decay_ratio = ratio,
                                                  .decay_type = type,
                                                  .min_lr_factor = floor};
  return {options, 0};
}

std::vector<std::string> cuts(int64_t steps, int64_t warmup, std::optional<double> ratio) {
  return curve_cuts({.warmup_steps = warmup, .decay_ratio = ratio}, steps);
}

void check_curve(const LrSchedule& schedule, const std::vector<double>& expected) {
  for (size_t step = 0; step < expected.size(); ++step) {
    CAPTURE(step);
    CHECK(schedule.factor(static_cast<int64_t>(step)) == Approx(expected[step]).epsilon(1e-12));
  }
}

}  // namespace

// The factors of torchtitan's test_lr_scheduler.
TEST_CASE("the learning rate curve equals the golden vectors") {
  using enum config::DecayType;
  check_curve(curve(10, 2, std::nullopt, kLinear, 0), {.5, 1, 1, .875, .75, .625, .5, .375, .25, .125});
  check_curve(curve(10, 2, 0.8, kLinear, 0), {.5, 1, 1, .875, .75, .625, .5, .375, .25, .125});
  check_curve(curve(10, 2, 0.5, kLinear, 0), {.5, 1, 1, 1, 1, 1, .8, .6, .4, .2});
  check_curve(curve(5, 10, std::nullopt, kLinear, 0), {.2, .4, .6, .8, 1});
  check_curve(curve(10, 2, 0.0, kLinear, 0), {.5, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  check_curve(curve(10, 5, 0.8, kLinear, 0), {.2, .4, .6, .8, 1, 1, .8, .6, .4, .2});
}

TEST_CASE("the floor bounds the decay and not the warm-up") {
  const LrSchedule schedule = curve(10, 2, std::nullopt, config::DecayType::kLinear, 0.2);
  CHECK(schedule.factor(0) == Approx(0.5));
  CHECK(schedule.factor(9) == Approx(0.3));
  CHECK(schedule.factor(10) == Approx(0.2));
  CHECK(schedule.factor(50) == Approx(0.2));
}

TEST_CASE("far beyond the horizon the factor stays at the floor and never rises or turns negative") {
  const config::DecayType type =
      GENERATE(config::DecayType::kLinear, config::DecayType::kSqrt, config::DecayType::kCosine);
  const double floor = GENERATE(0.0, 0.1, 1.0);
  const std::optional<double> ratio =
      GENERATE(std::optional<double>(), std::optional<double>(0.3), std::optional<double>(1.0));
  for (const int64_t total : {1, 2, 7, 100}) {
    for (const int64_t warmup : {0, 1, 5}) {
      if (warmup >= total) continue;  // nothing decays
      const LrSchedule schedule = curve(total, warmup, ratio, type, floor);
      const bool decays = !ratio || std::nearbyint(static_cast<double>(total) * *ratio) > 0;
      double last = 1.0;
      for (int64_t step = warmup; step < 3 * total + 10; ++step) {
        const double factor = schedule.factor(step);
        CHECK(factor >= floor);
        CHECK(factor <= last);
        last = factor;
        if (step >= total) CHECK(factor == (decays ? Approx(floor).margin(1e-15) : Approx(1.0)));
      }
      CHECK(schedule.factor(std::numeric_limits<int64_t>::max()) == schedule.factor(total));
    }
  }
}

TEST_CASE("curves of any length are computed without overflow") {
  const int64_t huge = std::numeric_limits<int64_t>::max();
  CHECK(curve(huge, 0, 0.0, config::DecayType::kLinear, 0).factor(huge) == 1.0);
  CHECK(curve(huge, 0, 1.0, config::DecayType::kLinear, 0).factor(0) == Approx(1.0));
  CHECK(curve(huge, huge, std::nullopt, config::DecayType::kCosine, 0).factor(huge) <= 1.0);
}

TEST_CASE("cosine and square root decay pass through their half way points") {
  CHECK(curve(9, 0, 1.0, config::DecayType::kCosine, 0).factor(4) ==
        Approx(0.5 * (1 + std::cos(M_PI * 4 / 9))));
  CHECK(curve(9, 0, 1.0, config::DecayType::kSqrt, 0).factor(4) == Approx(1 - std::sqrt(4.0 / 9)));
}

TEST_CASE("decay lengths round half to even as Python does") {
  // 5 * 0.5 = 2.5 -> 2 decaying steps; 7 * 0.5 = 3.5 -> 4
  CHECK(curve(5, 0, 0.5, config::DecayType::kLinear, 0).factor(3) == 1.0);
  CHECK(curve(5, 0, 0.5, config::DecayType::kLinear, 0).factor(4) == Approx(0.5));
  CHECK(curve(7, 0, 0.5, config::DecayType::kLinear, 0).factor(4) == Approx(0.75));
}

TEST_CASE("a warm-up or decay that does not fit is cut, and said") {
  CHECK(cuts(10, 2, std::nullopt).empty());
  CHECK(cuts(10, 2, 0.8).empty());
  CHECK(cuts(10, 10, std::nullopt).empty());
  REQUIRE(cuts(10, 200, 0.8).size() == 1);
  CHECK(cuts(10, 200, std::nullopt)[0].find("warmup_steps = 200") != std::string::npos);
  REQUIRE(cuts(10, 4, 0.8).size() == 1);
  CHECK(cuts(10, 4, 0.8)[0].find("cut to 6 steps") != std::string::npos);
}

TEST_CASE("a curve without a length of its own is as long as the training") {
  const config::JobConfig::LrScheduler options = {.warmup_steps = 0};
  CHECK(LrSchedule(options, 10).factor(5) == Approx(0.5));
  CHECK(LrSchedule(options, 20).factor(5) == Approx(0.75));
}

}  // namespace hyperion::optim
