// Ctrl-C, TERM and USR1: the first one lets the running step finish, a second Ctrl-C or TERM ends the process
// at once.
#pragma once

namespace hyperion {

enum class StopSignal { kNone = 0, kInterrupt = 1, kTerminate = 2 };

// Installs the handlers. Before it, signals end the process as usual.
void catch_stop_signals();

// The first signal that arrived, if any (USR1, SLURM's warning, counts as TERM).
StopSignal stop_signal();

}  // namespace hyperion
