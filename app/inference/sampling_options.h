// How `hyperion generate` chooses tokens: apart from generate.h, so that the command line needs no libtorch.
#pragma once

#include <cstdint>

namespace hyperion::inference {

struct SamplingOptions {
  int64_t max_tokens = 128;
  double temperature = 0;  // 0: always the likeliest token
  int64_t top_k = 0;       // draw among the k likeliest; 0: among all
  uint64_t seed = 0;
};

}  // namespace hyperion::inference
