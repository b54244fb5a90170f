// The larger one of two numbers, where NaN is the largest: what a test compares with a limit.
#pragma once

namespace hyperion {

inline double larger_of(double a, double b) {
  const bool a_is_nan = a != a;
  return a_is_nan || b <= a ? a : b;
}

}  // namespace hyperion
