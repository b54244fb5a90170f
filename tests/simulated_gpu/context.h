// The contexts that this process has on the simulated GPUs.
#pragma once

#include <atomic>

namespace simulated_gpu {

// Set once, by the first call of the runtime that needs it.
std::atomic<bool>& has_context(int device);

}  // namespace simulated_gpu
