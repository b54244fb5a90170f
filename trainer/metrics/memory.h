// Measures the peak memory of this rank's device since the last reset.
#pragma once

#include <cstdint>

namespace hyperion::metrics {

struct DeviceMemory {
  int64_t max_active_bytes = 0;    // GPU: in use by tensors; CPU: resident memory of the process
  int64_t max_reserved_bytes = 0;  // GPU: held by the caching allocator; CPU: as above
  double max_active_percent = 0;   // of the device's (CPU: the machine's) memory
  double max_reserved_percent = 0;
  int64_t num_alloc_retries = 0;  // since start: allocations that first had to empty the cache
  int64_t num_ooms = 0;           // since start
};

class MemoryMonitor {
 public:
  static constexpr int kCpu = -1;

  // `cuda_index` is the GPU, or kCpu. A GPU's allocator must be initialised before (any tensor does that).
  explicit MemoryMonitor(int cuda_index);

  // Returns the peaks since construction or the last call, and resets them. If the kernel does not let a
  // process reset its peak (/proc/self/clear_refs), the CPU's figure is the peak since the process started.
  DeviceMemory take_peak();

 private:
  void reset_peak();

  int cuda_index_;
  int64_t capacity_ = 0;  // bytes of the device
};

}  // namespace hyperion::metrics
