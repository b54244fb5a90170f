// DimensionChecks collects what is wrong with the dimensions of a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hyperion::models {

// More than any model has: what is made for each block or each expert must not exhaust memory before the
// model is refused.
constexpr int64_t kMaxLayers = 10'000, kMaxExperts = 65'536;
constexpr int64_t kLargestDimension = int64_t{1} << 31;

// An inconsistency of dimensions. `keys` are the keys of [model.args] that decide it, the most likely cause
// first.
struct DimensionProblem {
  std::vector<std::string> keys;
  std::string text;  // "n_heads is 5, expected a multiple of n_kv_heads = 2"
};

class DimensionChecks {
 public:
  // Adds a problem if `wrong`.
  void refuse_if(bool wrong, std::vector<std::string> keys, std::string text);
  // These check the value of keys.front(): against [min, max] or [1, kLargestDimension]; that it is even;
  // and `good`, a condition on it that `expected` names.
  void in_range(std::vector<std::string> keys, int64_t value, int64_t min, int64_t max);
  void positive(std::vector<std::string> keys, int64_t value);
  void require(bool good, const char* key, double value, const char* expected);
  // Checks that fp32 holds the value, as a normal number or 0.
  void fits_float(const char* key, double value);

  const std::vector<DimensionProblem>& problems() const { return problems_; }

 private:
  std::vector<DimensionProblem> problems_;
};

}  // namespace hyperion::models
