// Axes of a plot: where the ticks are and how numbers are written. No I/O.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace hyperion::report {

struct Tick {
  double value = 0;
  std::string label;
};

struct Interval {
  double low = 0, high = 1;

  static constexpr Interval empty() { return {INFINITY, -INFINITY}; }
  bool is_empty() const { return low > high; }
  void extend_to(double value) { *this = {std::min(low, value), std::max(high, value)}; }
};

// About `wanted` multiples of 1, 2 or 5 times a power of ten inside the interval.
std::vector<Tick> linear_ticks(Interval interval, int wanted);

// Powers of ten, with 2 and 5 times them over a short interval; linear_ticks() where there would be fewer
// than two. low > 0.
std::vector<Tick> log_ticks(Interval interval, int wanted);

// What an axis shows for data in `data`: a little more on both sides, from 0 on when `from_zero` and the data
// is not negative; never empty, and finite.
Interval linear_interval(Interval data, bool from_zero);
Interval log_interval(Interval data);

// Whether a log scale shows this data better: all of it positive, over at least two powers of ten.
bool wants_log_scale(Interval data);

// "1.5M", "20k", "0.25", "3e-4": the label of a tick.
std::string tick_label(double value);
// "1,234,567", "0.0123457", "3.2e-05": six significant digits.
std::string number_text(double value);

// The largest unit of time in which `seconds` is at least 3.
struct TimeUnit {
  const char* name = "seconds";
  double seconds = 1;
};
TimeUnit time_unit(double seconds);

}  // namespace hyperion::report
