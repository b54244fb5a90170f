// PrometheusFigures holds what rank 0 tells Prometheus, and writes it in the text exposition format 0.0.4.
// The training threads never wait for a reader: single numbers are atomic, and the lists of the last logged
// step and validation reach the reader through three slots.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "trainer/metrics/metrics_jsonl.h"

namespace hyperion::metrics {

// Hands the newest value of one writing thread to one reading thread; neither waits.
template <typename T>
class NewestValue {
 public:
  // The writer's: fills the slot that back() returns, then publishes it.
  T& back() { return slots_[back_]; }
  void publish() { back_ = middle_.exchange(back_ | kNew, std::memory_order_acq_rel) & kSlot; }
  // The reader's: the value published last, a default one before the first.
  const T& newest() {
    if ((middle_.load(std::memory_order_relaxed) & kNew) != 0)
      front_ = middle_.exchange(front_, std::memory_order_acq_rel) & kSlot;
    return slots_[front_];
  }

 private:
  static constexpr uint8_t kNew = 4, kSlot = 3;
  std::array<T, 3> slots_;
  uint8_t back_ = 0, front_ = 1;
  std::atomic<uint8_t> middle_ = 2;
};

// PrometheusFacts are known before the first step.
struct PrometheusFacts {
  std::string run_id;
  int64_t ranks = 1;
  int64_t start_step = 0;  // the last step already done
  int64_t total_steps = 0;
  int64_t tokens_seen = 0;  // by the steps already done
  int64_t starts = 1;       // records under runs/, this start's included
  double start_time = 0;    // seconds since 1970
};

class PrometheusFigures {
 public:
  explicit PrometheusFigures(PrometheusFacts facts);

  // Called by the training thread.
  void step_done(int64_t step, int64_t tokens_seen);
  void logged(int64_t step, const MetricList& metrics);
  void begin_validation();
  void validated(int64_t step, const MetricList& metrics);
  // Callable from any thread: takes checkpoints and the job's end from the events of docs/metrics.md.
  void event(int64_t step, const std::string& name, const JsonFields& fields);

  // Called by the one thread that answers. Figures that are not known yet are absent.
  std::string text();

  static constexpr size_t kMaxSources = 64;  // further sources are counted, not listed

 private:
  struct Logged {
    int64_t step = 0;
    double time = 0;
    MetricList metrics;
  };
  struct Lists {
    Logged training, validation;
  };
  enum class State { kStarting, kTraining, kValidating, kCompleted, kStopped, kFailed };
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  void write_progress(std::string& out) const;
  void write_checkpoints(std::string& out) const;

  const PrometheusFacts facts_;
  Lists lists_;  // the training thread's
  NewestValue<Lists> published_;
  std::atomic<State> state_ = State::kStarting;
  std::atomic<int64_t> step_, tokens_seen_, saved_ = 0, failed_saves_ = 0;
  std::atomic<double> step_time_ = kUnknown, exit_code_ = kUnknown, saved_time_ = kUnknown,
                      saved_step_ = kUnknown, save_seconds_ = kUnknown, saved_bytes_ = kUnknown,
                      stall_seconds_ = kUnknown, failure_time_ = kUnknown;
};

// Every name of a metric that text() may hold, in its order.
std::vector<std::string> prometheus_names();

}  // namespace hyperion::metrics
