#include "models/args/dimension_checks.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

namespace hyperion::models {

void DimensionChecks::refuse_if(bool wrong, std::vector<std::string> keys, std::string text) {
  if (wrong) problems_.push_back({std::move(keys), std::move(text)});
}

void DimensionChecks::in_range(std::vector<std::string> keys, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return;
  std::string text = fmt::format("{} is {}, expected a value from {} to {}", keys.front(), value, min,
                                 max == kLargestDimension ? "2^31" : std::to_string(max));
  problems_.push_back({std::move(keys), std::move(text)});
}

void DimensionChecks::positive(std::vector<std::string> keys, int64_t value) {
  in_range(std::move(keys), value, 1, kLargestDimension);
}

void DimensionChecks::require(bool good, const char* key, double value, const char* expected) {
  if (!good) problems_.push_back({{key}, fmt::format("{} is {}, expected {}", key, value, expected)});
}

void DimensionChecks::fits_float(const char* key, double value) {
  require(value == 0 || std::isnormal(static_cast<float>(value)), key, value,
          "a number from 1.2e-38 to 3.4e38: another is infinite or 0 in fp32, in which it is used");
}

}  // namespace hyperion::models
