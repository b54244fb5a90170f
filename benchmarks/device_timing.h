// The device that a benchmark runs on, and medians of seconds on it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "base/device/device.h"
#include "base/device/device_library.h"
#include "base/device/streams.h"
#include "models/kernels/kernels.h"

namespace hyperion {

struct BenchmarkDevice {
  at::Device device = at::kCPU;
  std::string name = "CPU";
  int compute_capability = 0;
};

// As HYPERION_DEVICE chooses. Throws Error(kUsage) as choose_device() does.
inline BenchmarkDevice choose_benchmark_device() {
  const char* wanted = std::getenv("HYPERION_DEVICE");
  const auto choice = wanted ? std::optional<std::string>(wanted) : std::nullopt;
  if (choose_device(choice, probe_driver(), load_device_library) == DeviceKind::kCpu) return {};
  const DeviceLibrary& library = device_library();
  library.set_device(0);
  kernels::choose_kernels(kernels::KernelChoice::kAuto, at::kCUDA);
  return {at::Device(at::kCUDA, 0), library.device_name(0), library.compute_capability(0)};
}

// Medians of seconds of one call. All works take turns, so that whatever else happens to the machine happens
// to each; each is called `times` times in a row, so that launching one hides behind running another.
inline std::vector<double> interleaved_medians(const std::vector<std::function<void()>>& works,
                                               at::Device device, int rounds, int times) {
  const DeviceStream stream = DeviceStream::current(device);
  std::vector<std::vector<double>> seconds(works.size());
  for (int round = -2; round < rounds; ++round)
    for (size_t i = 0; i < works.size(); ++i) {
      stream.synchronize();
      const auto begin = std::chrono::steady_clock::now();
      for (int time = 0; time < times; ++time) works[i]();
      stream.synchronize();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      if (round >= 0) seconds[i].push_back(took.count() / times);  // the first rounds warm up
    }
  std::vector<double> medians;
  for (auto& one : seconds) {
    std::ranges::nth_element(one, one.begin() + std::ssize(one) / 2);
    medians.push_back(one[one.size() / 2]);
  }
  return medians;
}

}  // namespace hyperion
