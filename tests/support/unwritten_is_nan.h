// While it lives, libtorch fills memory of new tensors that nothing was written to with NaN.
#pragma once

#include <ATen/Context.h>

namespace hyperion {

struct UnwrittenIsNaN {
  UnwrittenIsNaN() { at::globalContext().setDeterministicAlgorithms(true, false); }
  ~UnwrittenIsNaN() { at::globalContext().setDeterministicAlgorithms(false, false); }
};

}  // namespace hyperion
