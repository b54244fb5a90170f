// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3"
// (SC 2011). A value depends on (key, counter) alone, so initial weights and data order are the same on any
// mesh.
#pragma once

#include <array>
#include <cstdint>

namespace hyperion {

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high = 0) {
  PhiloxBlock c = {static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                   static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

// Uniform in (0, 1), never 0 or 1: (n + 0.5) / 2^52 for the top 52 bits n of two words (exact in a double).
constexpr double uniform_open(uint32_t high, uint32_t low) {
  const uint64_t bits = ((uint64_t{high} << 32) | low) >> 12;
  return (static_cast<double>(bits) + 0.5) * (1.0 / 4503599627370496.0);
}

}  // namespace hyperion
