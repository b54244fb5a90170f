// The places of the elements of a rank's part in the global parameter, for code that includes no
// libtorch.
#pragma once

#include <cstdint>

namespace hyperion::kernels {

// Element i of the part, row-major, is element
//   first + i % run + i / run % runs * run_stride + i / (run * runs) * plane_stride
// of the whole parameter, row-major.
struct ElementIndices {
  int64_t first = 0, run = 1, runs = 1, run_stride = 0, plane_stride = 0;
};

// Returns the number of elements from element i of the part on that are consecutive in the whole parameter.
constexpr int64_t consecutive_from(const ElementIndices& indices, int64_t i) {
  return indices.run - i % indices.run;
}
constexpr int64_t index_of(const ElementIndices& indices, int64_t i) {
  const int64_t run = i / indices.run;
  return indices.first + i % indices.run + run % indices.runs * indices.run_stride +
         run / indices.runs * indices.plane_stride;
}

}  // namespace hyperion::kernels
