#include "base/device/streams.h"

#include <catch2/catch.hpp>

namespace hyperion {

TEST_CASE("on a CPU streams and events do nothing and never wait") {
  const c10::Device cpu(c10::kCPU);
  const DeviceStream current = DeviceStream::current(cpu), other = DeviceStream::from_pool(cpu, true);
  DeviceEvent event;
  CHECK_FALSE(event.recorded());
  {
    StreamScope scope(other);
    event.record(other);
  }
  current.wait(event);
  current.wait(other);
  event.wait_on_host();
  current.synchronize();
  CHECK_FALSE(event.recorded());
}

}  // namespace hyperion
