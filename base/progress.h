// Shows rate and remaining time of long work: a status line rewritten in place if stderr is a terminal,
// else a log line every ten seconds. Ranks whose log lines are hidden show no progress either.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace hyperion {

// "tokenize  42% 1.2G/2.8G B, 0:45 to go, 35.1M B/s"; with a total of 0 (unknown): "eval 1.2M tokens, 35.1k
// tokens/s". `seconds` is the elapsed time.
std::string progress_line(const std::string& name, uint64_t done, uint64_t total, const std::string& unit,
                          double seconds);

// Not thread-safe. The destructor erases the status line, so that the next output starts on a clean line.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  // `total` is the final count of `unit`, or 0.
  Progress(std::string name, uint64_t total, std::string unit,
           std::chrono::milliseconds between_log_lines = std::chrono::seconds(10));
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  // Cheap enough to call for every item: prints five times a second on a terminal. Tests pass `now`.
  void update(uint64_t done, Clock::time_point now = Clock::now());

 private:
  std::string name_;
  uint64_t total_;
  std::string unit_;
  bool visible_, terminal_;
  bool printed_ = false;  // a status line
  std::chrono::milliseconds between_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point next_;  // short work stays silent
};

}  // namespace hyperion
