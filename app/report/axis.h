// Places the ticks of a plot's axes and formats numbers. No I/O.
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

// Returns about `wanted` ticks inside the interval, at multiples of 1, 2 or 5 times a power of ten.
std::vector<Tick> linear_ticks(Interval interval, int wanted);

// Returns ticks at powers of ten, in a short interval also at 2 and 5 times these. Uses linear_ticks() if
// there would be fewer than two. Needs low > 0.
std::vector<Tick> log_ticks(Interval interval, int wanted);

// Both return the axis range for `data`, with a margin on both sides; never empty, and finite. The linear
// range starts at 0 if `from_zero` is set and the data are not negative.
Interval linear_interval(Interval data, bool from_zero);
Interval log_interval(Interval data);

// Returns whether a log scale suits the data: all positive, over at least two powers of ten.
bool wants_log_scale(Interval data);

// Returns the label of a tick: "1.5M", "20k", "0.25", "3e-4".
std::string tick_label(double value);
// Formats six significant digits: "1,234,567", "0.0123457", "3.2e-05".
std::string number_text(double value);

// time_unit() returns the largest unit of time in which `seconds` is at least 3.
struct TimeUnit {
  const char* name = "seconds";
  double seconds = 1;
};
TimeUnit time_unit(double seconds);

// "3 d 4 h", "2 h 47 min", "5 min 10 s", "12 s"; "0 s" for negative numbers and NaN.
std::string duration_text(double seconds);
// "2026-02-20 12:00:00 UTC"
std::string utc_text(double unix_seconds);

}  // namespace hyperion::report
