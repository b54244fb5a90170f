#include "models/kernels/adam/rounded_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/philox.h"
#include "base/processor.h"

namespace hyperion::kernels::rows {
namespace {

inline __attribute__((always_inline)) float wide_bits(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
// The upper half of x after a random number was added to the lower half; NaN stays NaN.
inline __attribute__((always_inline)) uint16_t rounded_up_by(float x, uint32_t random) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t upper = (bits + random) >> 16;
  return static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : upper);
}
// Rounds to nearest, ties to even.
inline __attribute__((always_inline)) uint16_t rounded_to_nearest(float x) {
  return rounded_up_by(x, 0x7FFF + ((std::bit_cast<uint32_t>(x) >> 16) & 1));
}

}  // namespace

HYPERION_VECTORISED void random_words(uint64_t key, uint64_t counter_high, uint64_t first, int64_t blocks,
                                      uint32_t* words) {
  constexpr int64_t kLanes = 16;
  for (int64_t begin = 0; begin < blocks; begin += kLanes) {
    uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) {
      const uint64_t counter = first + static_cast<uint64_t>(begin + i);
      c0[i] = static_cast<uint32_t>(counter);
      c1[i] = static_cast<uint32_t>(counter >> 32);
      c2[i] = static_cast<uint32_t>(counter_high);
      c3[i] = static_cast<uint32_t>(counter_high >> 32);
    }
    philox4x32_lanes(key, c0, c1, c2, c3);
    const int64_t count = std::min(kLanes, blocks - begin);
    for (int64_t i = 0; i < count; ++i) {
      uint32_t* const block = words + 4 * (begin + i);
      block[0] = c0[i];
      block[1] = c1[i];
      block[2] = c2[i];
      block[3] = c3[i];
    }
  }
}

HYPERION_VECTORISED void rounded_adam(const RoundedAdamNumbers& numbers, const uint32_t* words,
                                      const float* grad, float* weight, uint16_t* m, uint16_t* v,
                                      uint16_t* copy, int64_t n) {
  const RoundedAdamNumbers k = numbers;
  for (int64_t i = 0; i < n; ++i) {
    float g = grad[i] / k.divisor;
    if (k.added_decay != 0) g += weight[i] * k.added_decay;
    const float m0 = wide_bits(m[i]), v0 = wide_bits(v[i]), difference = g - m0;
    const float first = k.rest1 < 0.5F ? m0 + difference * k.rest1 : g - difference * k.beta1;
    const float second = v0 * k.beta2 + g * k.rest2 * g;
    weight[i] = weight[i] * k.shrink - first * k.step_size / (std::sqrt(second) / k.root2 + k.eps);
    m[i] = rounded_up_by(first, words[i] & 0xFFFF);
    v[i] = rounded_up_by(second, words[i] >> 16);
  }
  if (copy != nullptr)
    for (int64_t i = 0; i < n; ++i) copy[i] = rounded_to_nearest(weight[i]);
}

HYPERION_VECTORISED void rounded_momentum(const RoundedMomentumNumbers& numbers, const uint32_t* words,
                                          float* grad, uint16_t* m, int64_t n) {
  const RoundedMomentumNumbers k = numbers;
  for (int64_t i = 0; i < n; ++i) {
    const float g = grad[i], m0 = wide_bits(m[i]), difference = g - m0;
    const float moved = k.rest < 0.5F ? m0 + difference * k.rest : g - difference * k.momentum;
    const float now = k.skipped ? m0 : moved;
    m[i] = rounded_up_by(now, words[i] & 0xFFFF);
    const float back = now - g;
    const float nesterov = k.momentum < 0.5F ? g + back * k.momentum : now - back * k.rest;
    grad[i] = k.nesterov ? nesterov : now;
  }
}

}  // namespace hyperion::kernels::rows
