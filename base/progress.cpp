#include "base/progress.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

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

bool stderr_is_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && (term == nullptr || std::string_view(term) != "dumb");
}

}  // namespace

std::string progress_line(const std::string& name, uint64_t done, uint64_t total, const std::string& unit,
                          double seconds) {
  done = std::min(done, total);
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  const uint64_t percent =
      total > 0 ? static_cast<uint64_t>(100.0 * static_cast<double>(done) / static_cast<double>(total)) : 100;
  const std::string left = rate > 0 ? clock_time(static_cast<double>(total - done) / rate) : "?";
  return fmt::format("{} {:3}% {}/{} {}, {} {}/s, {} to go", name, percent,
                     short_number(static_cast<double>(done)), short_number(static_cast<double>(total)), unit,
                     short_number(rate), unit, left);
}

Progress::Progress(std::string name, uint64_t total, std::string unit)
    : name_(std::move(name)), total_(total), unit_(std::move(unit)), visible_(stderr_is_terminal()) {}

Progress::~Progress() {
  if (printed_) std::fputs("\x1b[K", stderr);
}

void Progress::update(uint64_t done) {
  if (!visible_) return;
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  next_ = now + std::chrono::milliseconds(200);
  printed_ = true;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  // No longer than the log prefix, and with the cursor left at its start: a log line in between covers it.
  constexpr size_t kLogPrefix = 51;
  const std::string line =
      progress_line(name_, done, total_, unit_, seconds).substr(0, kLogPrefix) + "\x1b[K\r";
  std::fputs(line.c_str(), stderr);  // fmt::print would throw where nobody reads it
}

}  // namespace hyperion
