// GpuSampler reads clocks, throttling and memory errors of a GPU from its driver by NVML (libnvidia-ml.so.1).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

namespace hyperion::metrics {

// A counter is absent if the GPU or its driver lacks it.
struct GpuCounters {
  // Counted since the first read.
  std::optional<int64_t> ecc_corrected{}, ecc_uncorrected{}, remapped_rows{};
  // Since the last GpuSampler::take().
  uint64_t throttled = 0;               // bits of kThrottleReasons
  std::optional<double> sm_mhz{};       // lowest while busy
  std::optional<double> temperature{};  // highest, degrees Celsius
  std::optional<double> watts{};        // highest
  static auto members(auto& self) {
    return std::tie(self.ecc_corrected, self.ecc_uncorrected, self.remapped_rows, self.throttled, self.sm_mhz,
                    self.temperature, self.watts);
  }
};

// Throttle reasons that mean a fault of the card, its cooling or its power supply. The power limit, which
// most GPUs reach in training, is not listed.
struct ThrottleReason {
  const char* name;  // "thermal"
  uint64_t bits;     // NVML's nvmlClocksEventReason... bits
};
inline constexpr ThrottleReason kThrottleReasons[] = {
    {"thermal", 0x20 | 0x40}, {"power_brake", 0x80}, {"hw_slowdown", 0x08}};

// Reads the counters every `period` on its own thread, because an NVML call takes up to milliseconds and may
// never return if the GPU has failed.
class GpuSampler {
 public:
  // `bus_id` is like "0000:1b:00.0". If nothing can be read, logs the reason if `says_why_not`.
  explicit GpuSampler(const std::string& bus_id, std::chrono::milliseconds period = std::chrono::seconds(1),
                      bool says_why_not = true);
  ~GpuSampler();  // waits up to two seconds for a call in flight
  GpuSampler(const GpuSampler&) = delete;
  GpuSampler& operator=(const GpuSampler&) = delete;

  // Returns the counters read since the last call, else the last ones. Returns nullopt, and logs that once,
  // if nothing was read for ten periods. Does not wait for NVML.
  std::optional<GpuCounters> take();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

// Returns whether an NVML call has outlived its sampler. The process must then end without destructors,
// because the call's thread still runs.
bool gpu_sampler_left_behind();

}  // namespace hyperion::metrics
