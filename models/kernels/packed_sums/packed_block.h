// The scaling and rounding of a block of a packed sum (models/kernels/packed_sums/packed_sums.h), on a GPU
// and on a CPU.
#pragma once

#include <cmath>
#include <cstdint>

#include "models/args/packed_row.h"

#ifdef __CUDACC__
#define HYPERION_ON_BOTH __host__ __device__
#else
#define HYPERION_ON_BOTH
#endif

namespace hyperion::kernels {

using models::bytes_of_packed_row, models::kPackedBlock;
inline constexpr float kPackedMost = 32767;       // the largest number of a block
inline constexpr float kPackedLeast = 0x1p-100F;  // a block with smaller elements is zeros

// Returns the larger of two magnitudes; NaN if one is NaN.
HYPERION_ON_BOTH inline float larger_or_nan(float a, float b) {
  return b > a || b != b ? b : a;
}

struct PackedScale {
  // largest: the largest magnitude of the block, or NaN. An infinite one makes the block NaN too.
  HYPERION_ON_BOTH explicit PackedScale(float largest)
      : scale(largest < kPackedLeast ? 0.0F : largest / kPackedMost),
        inverse(largest < kPackedLeast ? 0.0F : kPackedMost / largest) {}

  HYPERION_ON_BOTH int16_t packed(float x) const {
    const float number = rintf(x * inverse);
    return number >= -kPackedMost && number <= kPackedMost ? static_cast<int16_t>(number) : int16_t{0};
  }

  float scale, inverse;
};

}  // namespace hyperion::kernels
