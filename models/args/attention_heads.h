// The heads and lengths that attention kernels take, and the layout of heads in those of a CPU
// (models/kernels/attention/cpu_blocks.h); estimates of memory count it too. Constants alone:
// it is compiled for several instruction sets.
#pragma once

#include <cstdint>

namespace hyperion::kernels::cpu {

inline constexpr int64_t kHeadMultiple = 16;  // head_dim is padded to a multiple of it
inline constexpr int64_t kLargestHead = 256;  // head_dim, at most

}  // namespace hyperion::kernels::cpu

namespace hyperion::kernels::gpu {

inline constexpr int64_t kLargestFlashHead = 256;  // head_dim, at most, in half precision
inline constexpr int64_t kLargestCudnnHead = 128;
inline constexpr int64_t kCudnnLatentHead = 192;  // head_dim that cuDNN also takes, with values of 128
inline constexpr int64_t kCudnnLength = 64;       // what divides the lengths that cuDNN is given

}  // namespace hyperion::kernels::gpu
