// Gradients that several ranks have parts of.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <utility>

#include "tests/support/larger_of.h"

namespace hyperion {

using Gradients = std::map<std::pair<int64_t, int64_t>, double>;  // by parameter and element

// |found - expected| over |expected|, of the parameter that is farthest off; infinity where there are more or
// fewer elements than expected.
inline double farthest_gradient(const Gradients& found, const Gradients& expected) {
  if (found.size() != expected.size()) return INFINITY;
  std::map<int64_t, std::pair<double, double>> squares;  // by parameter: of the difference, of the gradient
  for (const auto& [key, value] : expected) {
    auto& [difference, size] = squares[key.first];
    difference += std::pow(found.at(key) - value, 2);
    size += std::pow(value, 2);
  }
  double farthest = 0;
  for (const auto& [parameter, of] : squares)
    if (of.first != 0) farthest = larger_of(farthest, std::sqrt(of.first / of.second));
  return farthest;
}

}  // namespace hyperion
