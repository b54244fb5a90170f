// Options that choose the tokens of `hyperion generate`. They are not in generate.h, so that the command line
// needs no libtorch.
#pragma once

#include <cstdint>

namespace hyperion::inference {

struct SamplingOptions {
  int64_t max_tokens = 128;
  double temperature = 0;  // 0: always the likeliest token
  int64_t top_k = 0;       // draws among the k likeliest tokens; 0: among all
  uint64_t seed = 0;
};

}  // namespace hyperion::inference
