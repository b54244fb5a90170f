// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3"
// (SC 2011). A value depends on (key, counter) alone, so initial weights and data order are the same on any
// mesh.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace hyperion {

using PhiloxBlock = std::array<uint32_t, 4>;

// Runs the ten rounds on the counters of kLanes blocks, whose words are c0 to c3, and leaves the blocks
// there. It is inlined, so that a caller that is compiled for vectors (HYPERION_VECTORISED) computes the
// lanes in them.
template <size_t kLanes>
[[gnu::always_inline]] constexpr void philox4x32_lanes(uint64_t key, uint32_t (&c0)[kLanes],
                                                       uint32_t (&c1)[kLanes], uint32_t (&c2)[kLanes],
                                                       uint32_t (&c3)[kLanes]) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (size_t i = 0; i < kLanes; ++i) {
      const uint64_t p0 = uint64_t{0xD2511F53} * c0[i], p1 = uint64_t{0xCD9E8D57} * c2[i];
      c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<uint32_t>(p1);
      c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
}

constexpr PhiloxBlock philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high = 0) {
  uint32_t c0[] = {static_cast<uint32_t>(counter_low)}, c1[] = {static_cast<uint32_t>(counter_low >> 32)},
           c2[] = {static_cast<uint32_t>(counter_high)}, c3[] = {static_cast<uint32_t>(counter_high >> 32)};
  philox4x32_lanes(key, c0, c1, c2, c3);
  return {c0[0], c1[0], c2[0], c3[0]};
}

// Uniform in (0, 1), never 0 or 1: (n + 0.5) / 2^52 for the top 52 bits n of two words (exact in a double).
constexpr double uniform_open(uint32_t high, uint32_t low) {
  const uint64_t bits = ((uint64_t{high} << 32) | low) >> 12;
  return (static_cast<double>(bits) + 0.5) * (1.0 / 4503599627370496.0);
}

}  // namespace hyperion
