#include "app/report/axis.h"

#include <array>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "base/counted.h"

namespace hyperion::report {
namespace {

// The smallest of 1, 2, 5 times a power of ten that is at least `width`.
double nice_width(double width) {
  const double power = std::pow(10.0, std::floor(std::log10(width)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= width * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

// Without digits that say nothing: "1.50" -> "1.5", "2.0" -> "2".
std::string without_trailing_zeros(std::string text) {
  if (text.find('.') == text.npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

}  // namespace

std::vector<Tick> linear_ticks(Interval interval, int wanted) {
  const double width = nice_width((interval.high - interval.low) / wanted);
  std::vector<Tick> ticks;
  const double first = std::ceil(interval.low / width - 1e-9);
  for (int i = 0; i <= 4 * wanted; ++i) {
    const double value = (first + i) * width;
    if (!(value <= interval.high + width * 1e-9)) break;
    ticks.push_back({value, tick_label(std::abs(value) < width * 1e-9 ? 0.0 : value)});
  }
  // Ticks that differ by less than a label shows have all their digits.
  for (size_t i = 1; i < ticks.size(); ++i) {
    if (ticks[i].label != ticks[i - 1].label) continue;
    for (Tick& tick : ticks) tick.label = number_text(tick.value);
    break;
  }
  return ticks;
}

std::vector<Tick> log_ticks(Interval interval, int wanted) {
  const double low = std::log10(interval.low), high = std::log10(interval.high);
  const bool between = high - low < 3;
  const int every = std::max(1, static_cast<int>(std::ceil((high - low) / wanted)));
  std::vector<Tick> ticks;
  for (int power = static_cast<int>(std::floor(low)); power <= high; ++power) {
    if (power % every != 0) continue;
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double value = factor * std::pow(10.0, power);
      if (value < interval.low * (1 - 1e-9) || value > interval.high * (1 + 1e-9)) continue;
      if (factor == 1.0 || between) ticks.push_back({value, tick_label(value)});
    }
  }
  return ticks.size() < 2 ? linear_ticks(interval, wanted) : ticks;
}

Interval linear_interval(Interval data, bool from_zero) {
  // differences of values near the largest double are infinite, those of the smallest ones 0
  const auto clamp_extremes = [](double value) {
    return std::abs(value) < 1e-290 ? 0 : std::clamp(value, -1e300, 1e300);
  };
  data = {clamp_extremes(data.low), clamp_extremes(data.high)};
  if (from_zero && data.low >= 0) return {0, data.high > 0 ? data.high * 1.06 : 1};
  double margin = (data.high - data.low) * 0.05;
  // a constant, or differences that double arithmetic does not resolve
  const double scale = std::max(std::abs(data.low), std::abs(data.high));
  if (margin <= scale * 1e-9) margin = scale > 0 ? scale * 0.1 : 1;
  return {data.low - margin, data.high + margin};
}

Interval log_interval(Interval data) {
  const double margin = std::max(std::exp(0.05 * (std::log(data.high) - std::log(data.low))), 1.1);
  return {std::max(data.low / margin, 1e-300), std::min(data.high * margin, 1e300)};
}

bool wants_log_scale(Interval data) {
  return data.low > 0 && data.high / data.low >= 100;
}

std::string tick_label(double value) {
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size >= 1e15 || size < 1e-3) {  // "3.00e-04" -> "3e-4"
    const std::string text = fmt::format("{:.2e}", value);
    const size_t e = text.find('e');
    return fmt::format("{}e{}", without_trailing_zeros(text.substr(0, e)), std::stoi(text.substr(e + 1)));
  }
  constexpr std::array<std::pair<double, const char*>, 4> kUnits = {
      {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}}};
  for (const auto& [unit, name] : kUnits)
    if (size >= 10 * unit || (size >= unit && unit >= 1e6))
      return without_trailing_zeros(fmt::format("{:.3f}", value / unit)) + name;
  return fmt::format("{:.6g}", value);
}

std::string number_text(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "NaN" : value > 0 ? "infinity" : "-infinity";
  const bool whole = value == std::floor(value);
  if (std::abs(value) >= 1e15 || (std::abs(value) < 1e5 && !whole)) return fmt::format("{:.6g}", value);
  return (value < 0 ? "-" : "") + format_count(static_cast<uint64_t>(std::nearbyint(std::abs(value))));
}

TimeUnit time_unit(double seconds) {
  for (const TimeUnit& unit : {TimeUnit{"days", 86400}, TimeUnit{"hours", 3600}, TimeUnit{"minutes", 60}})
    if (seconds >= 3 * unit.seconds) return unit;
  return {};
}

std::string duration_text(double seconds) {
  if (!(seconds >= 0)) return "0 s";
  if (seconds >= 1e11) return number_text(std::round(seconds)) + " s";
  const auto s = static_cast<int64_t>(seconds);
  if (s >= 86400) return fmt::format("{} d {} h", s / 86400, s / 3600 % 24);
  if (s >= 3600) return fmt::format("{} h {} min", s / 3600, s / 60 % 60);
  if (s >= 60) return fmt::format("{} min {} s", s / 60, s % 60);
  return fmt::format("{} s", s);
}

std::string utc_text(double unix_seconds) {
  if (!(unix_seconds >= 0 && unix_seconds < 2.5e11)) return number_text(unix_seconds);
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(static_cast<std::time_t>(unix_seconds)));
}

}  // namespace hyperion::report
