#include "base/progress.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "base/log.h"
#include "base/terminal.h"

namespace hyperion {
namespace {

std::string short_number(double value) {
  for (const char* suffix : {"", "k", "M", "G"}) {
    if (value < 1000) return fmt::format("{:.{}f}{}", value, *suffix != '\0' && value < 100 ? 1 : 0, suffix);
    value /= 1000;
  }
  return fmt::format("{:.1f}T", value);
}

std::string clock_time(double seconds) {
  const auto total = static_cast<uint64_t>(std::min(seconds, 3.6e8));
  if (total < 3600) return fmt::format("{}:{:02}", total / 60, total % 60);
  return fmt::format("{}:{:02}:{:02}", total / 3600, total / 60 % 60, total % 60);
}

}  // namespace

std::string progress_line(const std::string& name, uint64_t done, uint64_t total, const std::string& unit,
                          double seconds) {
  if (total > 0) done = std::min(done, total);
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  if (total == 0)
    return fmt::format("{} {} {}, {} {}/s", name, short_number(static_cast<double>(done)), unit,
                       short_number(rate), unit);
  const auto percent = static_cast<uint64_t>(100.0 * static_cast<double>(done) / static_cast<double>(total));
  const std::string left = rate > 0 ? clock_time(static_cast<double>(total - done) / rate) : "?";
  return fmt::format("{} {:3}% {}/{} {}, {} to go, {} {}/s", name, percent,
                     short_number(static_cast<double>(done)), short_number(static_cast<double>(total)), unit,
                     left, short_number(rate), unit);
}

Progress::Progress(std::string name, uint64_t total, std::string unit,
                   std::chrono::milliseconds between_log_lines)
    : name_(std::move(name)),
      total_(total),
      unit_(std::move(unit)),
      visible_(spdlog::should_log(spdlog::level::info)),
      terminal_(terminal_escapes(STDERR_FILENO)),
      between_(terminal_ ? std::chrono::milliseconds(200) : between_log_lines),
      next_(begin_ + (terminal_ ? std::chrono::milliseconds(500) : between_log_lines)) {}

Progress::~Progress() {
  if (printed_) std::fputs("\x1b[K", stderr);
}

void Progress::update(uint64_t done, Clock::time_point now) {
  if (!visible_ || now < next_) return;
  next_ = now + between_;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  if (!terminal_) return log_info("{}", progress_line(name_, done, total_, unit_, seconds));
  printed_ = true;
  // No longer than a short log line, and with the cursor left at its start: a log line in between covers it.
  constexpr size_t kShortLogLine = 60;
  const std::string line =
      progress_line(name_, done, total_, unit_, seconds).substr(0, kShortLogLine) + "\x1b[K\r";
  std::fputs(line.c_str(), stderr);  // fmt::print throws when stderr is closed
}

}  // namespace hyperion
