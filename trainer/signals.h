// Ctrl-C, TERM and USR1: the first one lets the running step finish, a second Ctrl-C or TERM ends the process
// at once.
#pragma once

#include <cstdint>

namespace hyperion {

enum class StopSignal { kNone = 0, kInterrupt = 1, kTerminate = 2 };

// Installs the handlers. Before it, signals end the process as usual. `acknowledge`: the first signal is
// answered at once, by a line on stdout that names the running step.
void catch_stop_signals(bool acknowledge);
void set_running_step(int64_t step);

// The first signal that arrived, if any (USR1, SLURM's warning, counts as TERM).
StopSignal stop_signal();

}  // namespace hyperion
