// The distribution of a parameter's initial values (models/init.h draws them).
#pragma once

namespace hyperion {

struct Init {
  enum class Kind { kOnes, kNormal, kTruncatedNormal };
  Kind kind = Kind::kOnes;
  double std = 1.0;
  double low = 0.0, high = 0.0;  // absolute bounds of a truncated normal

  static Init ones() { return {}; }
  static Init normal(double std) { return {Kind::kNormal, std, 0.0, 0.0}; }
  static Init truncated_normal(double std, double low, double high) {
    return {Kind::kTruncatedNormal, std, low, high};
  }
  bool operator==(const Init&) const = default;
};

}  // namespace hyperion
