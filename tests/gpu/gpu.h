// Where tests find their GPU. Everything CUDA happens in forked ranks (tests/support/ranks.h): a process
// that has used CUDA cannot fork.
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/device/device.h"
#include "base/device/device_library.h"
#include "models/kernels/kernels.h"
#include "tests/support/ranks.h"

namespace hyperion {

// Loading CUDA's libraries from a cold disk takes most of it.
constexpr std::chrono::seconds kGpuTimeout{240};

// How many GPUs can be used, asked once per program; 0 after saying why none can, which ctest reads as
// "skipped". Asked in a process of its own, because asking initialises CUDA. Where there are as many as the
// test needs, CUDA's libraries are loaded here, once for all ranks: loading them initialises nothing.
inline int gpus(int needed = 1) {
  static const int devices =
      run_one_rank([](const parallel::Environment&) { return static_cast<int>(probe_driver().devices); });
  if (devices == 0) {
    std::printf("skipped: no GPU: %s\n", probe_driver().reason.c_str());
  } else if (devices < needed) {
    std::printf("skipped: %d of %d GPUs, and NCCL needs one for each rank\n", devices, needed);
  } else if (const std::string problem = load_device_library(); !problem.empty()) {
    throw std::runtime_error(problem);
  }
  return devices;
}

// Of the first GPU, as 90; asked once per program, after gpus().
inline int gpu_capability() {
  static const int capability = run_one_rank(
      [](const parallel::Environment&) { return static_cast<int>(device_library().compute_capability(0)); },
      kGpuTimeout);
  return capability;
}

// Returns whether the GPUs are tests/simulated_gpu's.
inline bool simulated() {
  const char* preloaded = std::getenv("LD_PRELOAD");
  return preloaded != nullptr && std::string_view(preloaded).find("simulated_gpu") != std::string_view::npos;
}

inline void use_gpu(int index) {
  const std::string problem = load_device_library();
  if (!problem.empty()) throw std::runtime_error(problem);
  device_library().set_device(index);
  kernels::choose_kernels(kernels::KernelChoice::kAuto, at::kCUDA);
}

}  // namespace hyperion
