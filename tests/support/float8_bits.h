// FP8 numbers in tests: what is hard to cast, and when two casts are equal.
#pragma once

#include <limits>

#include <ATen/core/Tensor.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

namespace hyperion::float8 {

// fp32 [m, n]: numbers around 1 with outliers, infinities, NaN, zeros of both signs, tiny numbers, halfway
// cases.
inline at::Tensor troublesome(int64_t m, int64_t n) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kValues[] = {kInfinity, -kInfinity, NAN,   0.0F,         -0.0F,
                               1e-30F,    -1e-40F,    3e38F, 449.0F,       -464.0F,
                               465.0F,    61440.0F,   17.0F, 0.001953125F, 0.0009765625F};
  at::Tensor x = at::randn({m, n});
  float* const numbers = x.mutable_data_ptr<float>();
  for (int64_t i = 0; i < m * n; i += 3) numbers[i] = kValues[i / 3 % std::ssize(kValues)];
  return x;
}

// Equal bytes, except that a NaN equals every other.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto bits = a.element_size() == 1 ? at::kByte : at::kInt;  // of FP8 and of fp32
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         (a.view(bits).eq(b.view(bits)) | (a.isnan() & b.isnan())).all().item<bool>();
}

}  // namespace hyperion::float8
