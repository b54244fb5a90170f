// Ctrl-C, TERM and USR1. While a job starts they end the process at once; in training the first one lets the
// running step finish, on GPUs one or two more (trainer/step_agreement.h), and a second Ctrl-C or TERM ends
// the process at once. A dry run ends at once in a step too.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

namespace hyperion::trainer {

enum class StopSignal { kNone = 0, kInterrupt = 1, kTerminate = 2 };

// For the start of a job, which has made no step that could be saved: a signal ends the process with the code
// of its kind. (Without a handler the first process of a container would never notice one.) `acknowledge`: a
// line on stdout says so.
void end_on_stop_signals(bool acknowledge);

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

// For training. `acknowledge`: the first signal is answered at once, by a line on stdout that names the
// running step.
void catch_stop_signals(bool acknowledge);
// For the steps of a dry run, which has nothing to save: as end_on_stop_signals(), but the line names the
// step.
void end_dry_run_on_stop_signals(bool acknowledge);
// `last`: the step after which a signal that comes now ends the job at the latest: `step`, on a GPU a later
// one.
void set_running_step(int64_t step, int64_t last);

// The first signal that arrived, if any (USR1, SLURM's warning, counts as TERM).
StopSignal stop_signal();

}  // namespace hyperion::trainer
