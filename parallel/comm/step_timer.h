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
  // After stop(); on a GPU when the host has waited for the stream.
  double own_seconds() const;            // without those of RankWait
  double schedule_seconds() const;       // of ScheduleSpan; 0 without one
  double transfer_wait_seconds() const;  // of RankWait for transfers of a pipeline

 private:
  friend class RankWait;
  friend class ScheduleSpan;
  struct Mark {
    std::chrono::steady_clock::time_point time;
    std::optional<c10::Event> event;  // on a GPU
  };
  struct Wait {
    Mark from, to;
    bool for_transfer;
  };
  Mark mark() const;
  static double seconds(const Mark& from, const Mark& to);
  // The timer that runs, where it is of that thread or stream; else null.
  static StepTimer* running(c10::DeviceType device);

  const c10::Device device_;
  const std::optional<c10::Stream> stream_;  // none on a CPU
  const std::thread::id thread_ = std::this_thread::get_id();
  Mark begin_;
  std::optional<Mark> end_;
  std::vector<Wait> waits_;
  std::optional<std::pair<Mark, Mark>> schedule_;
  int depth_ = 0;  // of RankWait in each other
};

// From its construction to done() the rank waits for others: the calling thread (a CPU) or its current stream
// (a GPU). Measures nothing without a StepTimer of that thread or stream, for one atomic load.
class RankWait {
 public:
  enum class For { kAll, kTransfer };
  // Of waits inside each other the outermost counts, with what it waits for.
  explicit RankWait(c10::DeviceType device, For what = For::kAll);
  void done();  // not called where the wait has failed

 private:
  StepTimer* timer_;  // null: not measured
  StepTimer::Mark begin_;
  For what_;
};

// From its construction to done() the rank runs its list of a pipeline's schedule. Measured as a RankWait.
class ScheduleSpan {
 public:
  explicit ScheduleSpan(c10::DeviceType device);
  void done();

 private:
  StepTimer* timer_;
  StepTimer::Mark begin_;
};

}  // namespace hyperion::parallel
