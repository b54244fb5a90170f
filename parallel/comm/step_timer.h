// How long a rank itself works in a step, apart from its waits for other ranks. In synchronous training all
// ranks take as long as the slowest one, so the duration of a step does not show which rank that is.
#pragma once

#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace hyperion::parallel {

// From its construction to stop(), on the thread that trains; one at a time in a process. On a CPU by the
// host's clock. On a GPU by events in the stream that is current at construction, the one that computes: time
// in which the host gives it nothing to do counts as the rank's own work.
class StepTimer {
 public:
  explicit StepTimer(c10::Device device);
  ~StepTimer();
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;

  void stop();
  // Seconds without those of RankWait. After stop(); on a GPU when the host has waited for the stream.
  double own_seconds() const;

 private:
  friend class RankWait;
  struct Mark {
    std::chrono::steady_clock::time_point time;
    std::optional<c10::Event> event;  // on a GPU
  };
  Mark mark() const;
  static double seconds(const Mark& from, const Mark& to);

  const c10::Device device_;
  const std::optional<c10::Stream> stream_;  // none on a CPU
  const std::thread::id thread_ = std::this_thread::get_id();
  Mark begin_;
  std::optional<Mark> end_;
  std::vector<std::pair<Mark, Mark>> waits_;
  int depth_ = 0;  // of RankWait in each other
};

// From its construction to done() the rank waits for others: the calling thread (a CPU) or its current stream
// (a GPU). Measures nothing without a StepTimer of that thread or stream, for one atomic load.
class RankWait {
 public:
  explicit RankWait(c10::DeviceType device);
  void done();  // not called where the wait has failed

 private:
  StepTimer* timer_;  // null: not measured
  StepTimer::Mark begin_;
};

}  // namespace hyperion::parallel
