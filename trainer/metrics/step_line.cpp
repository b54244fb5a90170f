#include "trainer/metrics/step_line.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>

namespace hyperion::metrics {
namespace {

// v0.2.2's palette; its "reset" restores the default foreground only.
struct Palette {
  const char* red = "\033[31m";
  const char* green = "\033[32m";
  const char* yellow = "\033[33m";
  const char* blue = "\033[34m";
  const char* magenta = "\033[35m";
  const char* cyan = "\033[36m";
  const char* orange = "\033[38;2;180;60;0m";
  const char* turquoise = "\033[38;2;54;234;195m";
  const char* reset = "\033[39m";
};
constexpr Palette kColors;
constexpr Palette kPlain = {"", "", "", "", "", "", "", "", ""};

std::string memory_field(double gib, double percent) {
  return fmt::format("{}GiB({}%)", python_fixed(gib, 5, 2), python_fixed(percent, 0, 2));
}

}  // namespace

std::string python_fixed(double value, int width, int precision) {
  if (std::isnan(value)) return fmt::format("{:>{}}", "nan", width);
  // glibc's printf, unlike fmt 9, is documented to round the exact value in the current rounding mode, as
  // Python does.
  char text[400];  // the largest double has 309 digits before the point
  const int size = std::snprintf(text, sizeof text, "%*.*f", width, precision, value);
  return std::string(text, static_cast<size_t>(size));
}

std::string python_grouped(double value, int precision) {
  const std::string plain = python_fixed(value, 0, precision);
  if (!std::isfinite(value)) return plain;
  const size_t first_digit = plain[0] == '-' ? 1 : 0;
  const size_t point = std::min(plain.find('.'), plain.size());
  std::string out;
  for (size_t i = 0; i < plain.size(); ++i) {
    if (i > first_digit && i < point && (point - i) % 3 == 0) out += ',';
    out += plain[i];
  }
  return out;
}

std::string hours_minutes_seconds(double seconds) {
  if (!(seconds >= 0 && seconds < 1e12)) return "?";
  const auto total = static_cast<int64_t>(std::llround(seconds));
  return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
}

std::string step_line(const StepReport& r, bool color) {
  const Palette& c = color ? kColors : kPlain;
  return fmt::format(
      "{}step: {:2}  {}loss: {}  {}grad_norm: {}  {}memory: {}  {}tps: {}  {}tflops: {}  {}mfu: {}%{}"
      "  steps: {}  lr: {}  step_time: {}s  data_loading: {}%  eta: {}",
      c.red, r.step, c.green, python_fixed(r.loss, 8, 5), c.orange, python_fixed(r.grad_norm, 7, 4),
      c.turquoise, memory_field(r.reserved_gib, r.reserved_percent), c.blue, python_grouped(r.tps, 0), c.cyan,
      python_grouped(r.tflops, 2), c.magenta, python_fixed(r.mfu, 0, 2), c.reset, r.total_steps,
      fmt::format("{:.2e}", r.lr), python_fixed(r.step_seconds, 0, 3), python_fixed(r.data_percent, 0, 1),
      hours_minutes_seconds(r.eta_seconds));
}

std::string validation_line(const ValidationReport& r, bool color) {
  const Palette& c = color ? kColors : kPlain;
  return fmt::format("{}validate step: {:2}  {}loss: {}  {}memory: {}  {}tps: {}{}", c.yellow, r.step,
                     c.green, python_fixed(r.loss, 7, 4), c.turquoise,
                     memory_field(r.reserved_gib, r.reserved_percent), c.blue, python_grouped(r.tps, 0),
                     c.reset);
}

}  // namespace hyperion::metrics
