// Ctrl-C, TERM and USR1. While a job starts they end the process at once; in training the first one lets the
// running step finish, on GPUs one or two more (trainer/engine/step_agreement.h), and a second Ctrl-C or TERM
// ends the process at once. A dry run ends at once in a step too.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

namespace hyperion::trainer {

enum class StopSignal { kNone = 0, kInterrupt = 1, kTerminate = 2 };

// What a job is doing, and so what a signal does.
enum class SignalPhase {
  // No step was made that could be saved: the process ends with the code of the signal's kind. (Without a
  // handler the first process of a container would never notice one.)
  kStart,
  kTraining,
  kDryRun,  // nothing to save either: as kStart
};
// From now on. `acknowledge`: the first signal is answered at once, by a line
// on stdout that names the running step.
void handle_stop_signals(SignalPhase phase, bool acknowledge);

// USR1, which would end a process that has no handler yet, waits (true) or comes (false). Callable before
// main().
void block_warning(bool block);

// While it lives, a signal that ends a starting job first has a thread of its own call `act`, which may do
// what a signal handler may not. A second signal ends the process at once.
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

// `last`: the step after which a signal that comes now ends the job at the latest: `step`, on a GPU a later
// one.
void set_running_step(int64_t step, int64_t last);

// The first signal that arrived, if any (USR1, SLURM's warning, counts as TERM).
StopSignal stop_signal();

}  // namespace hyperion::trainer
