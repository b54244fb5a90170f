// StepTimer measures how long a rank itself works in a step, without its waits for other ranks. In
// synchronous training all ranks take as long as the slowest one, so the duration of a step does not show
// which rank is slow.
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

// Measures from construction to stop() on the training thread; at most one exists per process. A CPU is
// timed by the host's clock, a GPU by events in the stream that is current at construction (the compute
// stream): time in which the host leaves that stream idle counts as the rank's own work.
class StepTimer {
 public:
  explicit StepTimer(c10::Device device);
  ~StepTimer();
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;

  void stop();
  // Valid after stop(); on a GPU after the host has synchronized with the stream.
  double own_seconds() const;            // without RankWait
  double schedule_seconds() const;       // time of the ScheduleSpan; 0 without one
  double transfer_wait_seconds() const;  // time of RankWait for pipeline transfers

 private:
  friend class RankWait;
  friend class ScheduleSpan;
  struct Mark {
    std::chrono::steady_clock::time_point time;
    std::optional<c10::Event> event;  // set on a GPU
  };
  struct Wait {
    Mark from, to;
    bool for_transfer;
  };
  Mark mark() const;
  static double seconds(const Mark& from, const Mark& to);
  // The running timer, if it belongs to this thread (CPU) or the current stream (GPU); else null.
  static StepTimer* running(c10::DeviceType device);

  const c10::Device device_;
  const std::optional<c10::Stream> stream_;  // none on a CPU
  const std::thread::id thread_ = std::this_thread::get_id();
  Mark begin_;
  std::optional<Mark> end_;
  std::vector<Wait> waits_;
  std::optional<std::pair<Mark, Mark>> schedule_;
  int depth_ = 0;  // nesting depth of RankWait
};

// Marks the time from construction to done() as waiting for other ranks: of the calling thread (CPU) or its
// current stream (GPU). Without a StepTimer of that thread or stream it measures nothing and costs one
// atomic load.
class RankWait {
 public:
  enum class For { kAll, kTransfer };
  // In nested waits only the outermost counts, with its `what`.
  explicit RankWait(c10::DeviceType device, For what = For::kAll);
  void done();  // not called if the wait failed

 private:
  StepTimer* timer_;  // null: measures nothing
  StepTimer::Mark begin_;
  For what_;
};

// Marks the time from construction to done() in which the rank runs its list of a pipeline schedule. It is
// measured as a RankWait.
class ScheduleSpan {
 public:
  explicit ScheduleSpan(c10::DeviceType device);
  void done();

 private:
  StepTimer* timer_;
  StepTimer::Mark begin_;
};

}  // namespace hyperion::parallel
