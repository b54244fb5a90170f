// A status line with rate and time to go for long work, rewritten in place on stderr. Only where stderr is a
// terminal (and TERM is not "dumb"): logs and pipes see nothing of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace hyperion {

// "tokenize  42% 1.2G/2.8G B, 35.1M B/s, 0:45 to go". Pure; `seconds` is the time used so far.
std::string progress_line(const std::string& name, uint64_t done, uint64_t total, const std::string& unit,
                          double seconds);

// For one thread. The line is wiped when the object goes, so that what is printed next starts on a clean
// line.
class Progress {
 public:
  // total: the count of `unit` that update() reaches at the end
  Progress(std::string name, uint64_t total, std::string unit);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  // Cheap enough for every item: prints five times a second.
  void update(uint64_t done);

 private:
  using Clock = std::chrono::steady_clock;
  std::string name_;
  uint64_t total_;
  std::string unit_;
  bool visible_;
  bool printed_ = false;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point next_ = begin_ + std::chrono::milliseconds(500);  // short work stays silent
};

}  // namespace hyperion
