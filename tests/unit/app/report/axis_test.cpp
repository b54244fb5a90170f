#include "app/report/axis.h"

#include <limits>

#include <catch2/catch.hpp>

namespace hyperion::report {
namespace {
std::vector<std::string> labels(const std::vector<Tick>& ticks) {
  std::vector<std::string> texts;
  for (const Tick& tick : ticks) texts.push_back(tick.label);
  return texts;
}
using Labels = std::vector<std::string>;
}  // namespace

TEST_CASE("Ticks of a linear axis are multiples of 1, 2 or 5 times a power of ten") {
  CHECK(labels(linear_ticks({0, 10}, 5)) == Labels{"0", "2", "4", "6", "8", "10"});
  CHECK(labels(linear_ticks({0, 0.0006}, 5)) == Labels{"0", "2e-4", "4e-4", "6e-4"});
  CHECK(labels(linear_ticks({-1, 1}, 4)) == Labels{"-1", "-0.5", "0", "0.5", "1"});
  CHECK(labels(linear_ticks({1970, 2030}, 5)) == Labels{"1980", "2000", "2020"});
  CHECK(labels(linear_ticks({0, 1.2e6}, 5)) == Labels{"0", "500k", "1M"});
  CHECK(labels(linear_ticks({23841000, 23841200}, 2)) == Labels{"23,841,000", "23,841,100", "23,841,200"});
  CHECK(labels(linear_ticks({0, 1e13}, 2)) == Labels{"0", "5T", "10T"});
}

TEST_CASE("Ticks of a logarithmic axis are powers of ten and, over a short interval, 2 and 5 times them") {
  CHECK(labels(log_ticks({0.5, 30}, 6)) == Labels{"0.5", "1", "2", "5", "10", "20"});
  CHECK(labels(log_ticks({1e-6, 1e4}, 6)) == Labels{"1e-6", "1e-4", "0.01", "1", "100", "10k"});
  CHECK(log_ticks({2.1, 2.3}, 5).size() >= 2);  // no power of ten there
  CHECK(log_ticks({1e-300, 1e300}, 6).size() >= 2);
  CHECK(log_ticks({1e-300, 1e300}, 6).size() <= 12);
}

TEST_CASE("An axis is finite and not empty whatever the data is") {
  const double largest = std::numeric_limits<double>::max();
  for (const Interval data : {Interval{0, 0}, Interval{3, 3}, Interval{-5, -5}, Interval{-largest, largest},
                              Interval{1, 1 + 1e-15}, Interval{5e-324, 5e-324}}) {
    for (const bool from_zero : {false, true}) {
      const Interval shown = linear_interval(data, from_zero);
      CHECK(shown.low < shown.high);
      CHECK(shown.high - shown.low < std::numeric_limits<double>::infinity());
      CHECK(linear_ticks(shown, 5).size() <= 21);
    }
  }
  CHECK(linear_interval({2, 4}, true).low == 0);
  CHECK(linear_interval({-2, 4}, true).low < -2);
  const Interval logarithmic = log_interval({5e-324, largest});
  CHECK(logarithmic.low > 0);
  CHECK(logarithmic.high / logarithmic.low > 0);
}

TEST_CASE("A logarithmic axis is chosen for positive data over two powers of ten") {
  CHECK(wants_log_scale({0.1, 50}));
  CHECK_FALSE(wants_log_scale({2, 11}));
  CHECK_FALSE(wants_log_scale({0, 50}));
  CHECK_FALSE(wants_log_scale({-1, 50}));
}

TEST_CASE("Numbers are grouped when whole and have six digits otherwise") {
  CHECK(number_text(1234567) == "1,234,567");
  CHECK(number_text(-4200) == "-4,200");
  CHECK(number_text(123456.5) == "123,456");
  CHECK(number_text(2.18312345) == "2.18312");
  CHECK(number_text(0) == "0");
  CHECK(number_text(std::numeric_limits<double>::quiet_NaN()) == "NaN");
  CHECK(number_text(-std::numeric_limits<double>::infinity()) == "-infinity");
  CHECK(tick_label(1500) == "1500");
  CHECK(tick_label(15000) == "15k");
  CHECK(tick_label(2.5e6) == "2.5M");
  CHECK(tick_label(3e-5) == "3e-5");
}

TEST_CASE("Time is shown in the largest unit of which there are three") {
  CHECK(time_unit(100).name == std::string("seconds"));
  CHECK(time_unit(600).name == std::string("minutes"));
  CHECK(time_unit(3 * 3600).name == std::string("hours"));
  CHECK(time_unit(1e6).name == std::string("days"));
}

}  // namespace hyperion::report
