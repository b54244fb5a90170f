#include "trainer/metrics/memory.h"

#include <fstream>
#include <string>

#include <sys/resource.h>
#include <unistd.h>

#include <c10/core/CachingDeviceAllocator.h>

namespace hyperion::metrics {
namespace {

// The allocator behind c10's device-generic interface: no CUDA library needs to be linked for it.
c10::DeviceAllocator& cuda_allocator() {
  return *c10::getDeviceAllocator(c10::DeviceType::CUDA);
}

int64_t peak_of(const c10::CachingAllocator::StatArray& stats) {
  return stats[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
}

// VmHWM of /proc/self/status, which reset_peak() can lower; without /proc the peak since the process started.
int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace

MemoryMonitor::MemoryMonitor(int cuda_index) : cuda_index_(cuda_index) {
  const bool cpu = cuda_index_ == kCpu;
  capacity_ = cpu ? int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE)
                  : static_cast<int64_t>(
                        cuda_allocator().getMemoryInfo(static_cast<c10::DeviceIndex>(cuda_index_)).second);
  reset_peak();
}

DeviceMemory MemoryMonitor::take_peak() {
  DeviceMemory memory;
  if (cuda_index_ == kCpu) {
    memory.max_active_bytes = memory.max_reserved_bytes = peak_resident_bytes();
  } else {
    const auto stats = cuda_allocator().getDeviceStats(static_cast<c10::DeviceIndex>(cuda_index_));
    memory.max_active_bytes = peak_of(stats.active_bytes);
    memory.max_reserved_bytes = peak_of(stats.reserved_bytes);
    memory.num_alloc_retries = stats.num_alloc_retries;
    memory.num_ooms = stats.num_ooms;
  }
  const double percent = capacity_ > 0 ? 100.0 / static_cast<double>(capacity_) : 0.0;
  memory.max_active_percent = percent * static_cast<double>(memory.max_active_bytes);
  memory.max_reserved_percent = percent * static_cast<double>(memory.max_reserved_bytes);
  reset_peak();
  return memory;
}

void MemoryMonitor::reset_peak() {
  if (cuda_index_ == kCpu) {
    std::ofstream("/proc/self/clear_refs") << "5";  // "5" sets VmHWM to the present size, see proc(5)
  } else {
    cuda_allocator().resetPeakStats(static_cast<c10::DeviceIndex>(cuda_index_));
  }
}

}  // namespace hyperion::metrics
