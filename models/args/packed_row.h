// The size of a row of a packed sum (models/kernels/packed_sums), which nvcc and the plan read too.
#pragma once

#include <cstdint>

namespace hyperion::models {

// The elements that share a scale.
inline constexpr int kPackedBlock = 64;

// Returns the bytes of a packed row of n elements: the int16 numbers of its blocks, then their fp32 scales. A
// multiple of 16.
constexpr int64_t bytes_of_packed_row(int64_t n) {
  const int64_t blocks = (n + kPackedBlock - 1) / kPackedBlock;
  return (blocks * (2 * kPackedBlock + 4) + 15) / 16 * 16;
}

}  // namespace hyperion::models
