// Memory that a thread of a CPU kernel keeps for its next call.
#pragma once

#include <cstdint>

namespace hyperion::kernels::cpu {

// At least `floats`, aligned to cache lines, of the calling thread; what it holds lasts until the next call
// for that slot, of which there are three.
float* thread_scratch(int64_t floats, int slot = 0);

}  // namespace hyperion::kernels::cpu
