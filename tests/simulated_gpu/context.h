// The contexts that this process has on the simulated GPUs.
#pragma once

#include <atomic>

namespace simulated_gpu {

// Set once, by the first call of the runtime that needs it.
std::atomic<bool>& has_context(int device);

// Waits the seconds that a variable of the environment says, if it is set. Returns true, for a static that is
// initialised once in a process.
bool delay(const char* variable);

}  // namespace simulated_gpu
