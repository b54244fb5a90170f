// Which heads a CPU's attention kernels (models/kernels/attention/cpu_blocks.h) take, and how they lay them
// out; estimates of memory count it too. Constants alone: it is compiled for several instruction sets.
#pragma once

#include <cstdint>

namespace hyperion::kernels::cpu {

inline constexpr int64_t kHeadMultiple = 16;  // head_dim is padded to a multiple of it
inline constexpr int64_t kLargestHead = 256;  // head_dim, at most

}  // namespace hyperion::kernels::cpu
