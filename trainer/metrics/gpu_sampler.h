// Clocks, throttling and memory errors of a GPU as its driver counts them, read by NVML (libnvidia-ml.so.1).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

namespace hyperion::metrics {

// Each may be absent: not every GPU and driver has all.
struct GpuCounters {
  // Since they were first read.
  std::optional<int64_t> ecc_corrected{}, ecc_uncorrected{}, remapped_rows{};
  // Since the last GpuSampler::take().
  uint64_t throttled = 0;               // bits of kThrottleReasons
  std::optional<double> sm_mhz{};       // lowest while the GPU worked
  std::optional<double> temperature{};  // highest, degrees Celsius
  std::optional<double> watts{};        // highest
  static auto members(auto& self) {
    return std::tie(self.ecc_corrected, self.ecc_uncorrected, self.remapped_rows, self.throttled, self.sm_mhz,
                    self.temperature, self.watts);
  }
};

// Reasons for lower clocks that say that something is wrong with the card, its cooling or its power supply; a
// GPU that works at its power limit, as most do in training, is not among them.
struct ThrottleReason {
  const char* name;  // "thermal"
  uint64_t bits;     // of NVML's nvmlClocksEventReason...
};
inline constexpr ThrottleReason kThrottleReasons[] = {
    {"thermal", 0x20 | 0x40}, {"power_brake", 0x80}, {"hw_slowdown", 0x08}};

// Reads the counters every `period` on a thread of its own: a call of NVML takes up to milliseconds, and one
// to a GPU that has failed may not return.
class GpuSampler {
 public:
  // `bus_id`: "0000:1b:00.0". Logs why, where nothing can be read.
  explicit GpuSampler(const std::string& bus_id, std::chrono::milliseconds period = std::chrono::seconds(1));
  ~GpuSampler();  // waits up to two seconds for a call that has not returned
  GpuSampler(const GpuSampler&) = delete;
  GpuSampler& operator=(const GpuSampler&) = delete;

  // What was read since the last call, or else last; none where nothing has been read for ten periods, which
  // is logged once. Waits for no call of NVML.
  std::optional<GpuCounters> take();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

// Whether a call of NVML has outlived its sampler: the process must end without destructors, because the
// call's thread still runs.
bool gpu_sampler_left_behind();

}  // namespace hyperion::metrics
