#include "trainer/metrics/memory.h"

#include <catch2/catch.hpp>

#include <ATen/ops/ones.h>

namespace hyperion::metrics {

TEST_CASE("Peak memory on a CPU includes a tensor that is gone again") {
  MemoryMonitor monitor(MemoryMonitor::kCpu);
  const DeviceMemory before = monitor.take_peak();
  CHECK(before.max_reserved_bytes > 0);
  CHECK(before.max_reserved_percent > 0);
  CHECK(before.max_reserved_percent < 100);

  constexpr int64_t kBytes = int64_t{96} << 20;
  at::ones({kBytes / 4});  // above malloc's mmap threshold: freed memory returns to the system at once
  const DeviceMemory during = monitor.take_peak();
  CHECK(during.max_active_bytes - before.max_active_bytes > kBytes / 2);
  CHECK(during.max_active_bytes == during.max_reserved_bytes);
  constexpr int64_t kGrown = int64_t{1} << 20;  // by the program itself, meanwhile
  CHECK(monitor.take_peak().max_active_bytes <= during.max_active_bytes + kGrown);
}

}  // namespace hyperion::metrics
