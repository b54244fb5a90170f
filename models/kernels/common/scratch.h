// Scratch memory of a CPU kernel's thread, kept from call to call.
#pragma once

#include <cstdint>

namespace hyperion::kernels::cpu {

// Returns memory of the calling thread for at least `floats`, aligned to cache lines. Its content lasts until
// the next call with the same slot. A thread has three slots.
float* thread_scratch(int64_t floats, int slot = 0);

}  // namespace hyperion::kernels::cpu
