// Handles Ctrl-C, TERM and USR1. While a job starts they end the process at once. In training the first
// signal lets the running step finish, on GPUs one or two more (trainer/engine/step_agreement.h), and a
// second Ctrl-C or TERM ends the process at once. A dry run always ends at once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

namespace hyperion::trainer {

enum class StopSignal { kNone = 0, kInterrupt = 1, kTerminate = 2 };

// The phase of a job decides the effect of a signal.
enum class SignalPhase {
  // There is no step to save, so the process ends with the exit code of the signal's kind. (The first process
  // of a container ignores signals without a handler.)
  kStart,
  kTraining,
  kDryRun,  // a dry run saves nothing: as kStart
};
// Handles signals as `phase` says from now on. With `acknowledge` the first signal prints at once a line on
// stdout that names the running step.
void handle_stop_signals(SignalPhase phase, bool acknowledge);

// Blocks (true) or unblocks (false) USR1, which would end a process without a handler. Callable before
// main().
void block_warning(bool block);

// While it lives, a signal that ends a starting job first makes a separate thread call `act`, which is not
// limited to async-signal-safe calls. A second signal ends the process at once.
class BeforeEndBySignal {
 public:
  explicit BeforeEndBySignal(std::function<void(const std::string& signal)> act);
  ~BeforeEndBySignal();
  BeforeEndBySignal(const BeforeEndBySignal&) = delete;
  BeforeEndBySignal& operator=(const BeforeEndBySignal&) = delete;

 private:
  int write_end_ = -1;
  std::thread thread_;
};

// `last` is the last step that runs if a signal arrives now: `step`, on a GPU a later one.
void set_running_step(int64_t step, int64_t last);

// Returns the first signal that arrived, if any. USR1, SLURM's warning, counts as TERM.
StopSignal stop_signal();

}  // namespace hyperion::trainer
