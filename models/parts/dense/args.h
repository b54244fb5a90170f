// DenseArgs: the width of a dense gated feed-forward.
#pragma once

#include <cstdint>

namespace hyperion::models {

struct DenseArgs {
  int64_t hidden_dim = 768;
};

// Returns the width by Llama's rule: int(8*dim/3), times `multiplier` if it is positive, rounded up to
// `multiple_of`.
constexpr int64_t swiglu_width(int64_t dim, double multiplier, int64_t multiple_of) {
  int64_t width = 2 * 4 * dim / 3;
  if (multiplier > 0) width = static_cast<int64_t>(multiplier * static_cast<double>(width));
  return (width + multiple_of - 1) / multiple_of * multiple_of;
}

}  // namespace hyperion::models
