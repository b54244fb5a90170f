#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "checkpoint/cast.h"
#include "checkpoint/tools/tools.h"

namespace hyperion::checkpoint {

bool ValueDifference::is_float() const {
  return can_cast(a_, b_);
}

double ValueDifference::relative_l2() const {
  if (square_ == 0) return 0;
  return std::sqrt(square_) / std::sqrt(square_a_);
}

void ValueDifference::add(const std::byte* a, const std::byte* b, uint64_t count) {
  const size_t width_a = size_of(a_), width_b = size_of(b_);
  // Most pieces are equal, bit for bit; the norm of `a` still counts.
  const bool equal = a_ == b_ && std::memcmp(a, b, count * width_a) == 0;
  if (a_ == b_ && !equal)
    for (uint64_t i = 0; i < count; ++i)
      different_ += std::memcmp(a + i * width_a, b + i * width_a, width_a) != 0 ? 1 : 0;
  if (!is_float()) return;
  constexpr uint64_t kCount = 4096;
  std::array<double, kCount> numbers_a, numbers_b;
  for (uint64_t at = 0; at < count; at += kCount) {
    const uint64_t n = std::min(kCount, count - at);
    cast(a_, a + at * width_a, Dtype::kFloat64, numbers_a.data(), n);
    if (!equal) cast(b_, b + at * width_b, Dtype::kFloat64, numbers_b.data(), n);
    add_numbers(numbers_a.data(), equal ? numbers_a.data() : numbers_b.data(), n);
  }
}

void ValueDifference::add_numbers(const double* a, const double* b, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    square_a_ += a[i] * a[i];
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    if (a_ != b_) ++different_;
    const double difference = std::abs(a[i] - b[i]);
    square_ += difference * difference;
    if (!std::isfinite(difference)) max_abs_ = std::numeric_limits<double>::quiet_NaN();
    if (difference > max_abs_) max_abs_ = difference;  // never when it is NaN
  }
}

}  // namespace hyperion::checkpoint
