// Where tests find their GPU. Everything CUDA happens in forked ranks (tests/support/ranks.h): a process
// that has used CUDA cannot fork.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/device/device.h"
#include "base/device/device_library.h"
#include "tests/support/ranks.h"

namespace hyperion {

// Loading CUDA's libraries from a cold disk takes most of it.
constexpr std::chrono::seconds kGpuTimeout{240};

// How many GPUs can be used; 0 after saying why none can, which ctest reads as "skipped". Asked in a process
// of its own, because asking initialises CUDA.
inline int gpus() {
  const auto devices = run_ranks(1, [](const Environment&) -> std::vector<double> {
    return {static_cast<double>(probe_driver().devices)};
  });
  if (devices[0][0] == 0) std::printf("skipped: no GPU: %s\n", probe_driver().reason.c_str());
  return static_cast<int>(devices[0][0]);
}

inline void use_gpu(int index) {
  const std::string problem = load_device_library();
  if (!problem.empty()) throw std::runtime_error(problem);
  device_library().set_device(index);
}

inline double largest_relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(a[i] - b.at(i)) / std::abs(b[i]));
  return largest;
}

}  // namespace hyperion
