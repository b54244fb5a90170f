#include "base/device/streams.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace hyperion {

void DeviceEvent::record(const DeviceStream& stream) {
  if (!stream.stream_) return;
  if (!event_) event_.emplace(stream.stream_->device_type());
  event_->record(*stream.stream_);
}

void DeviceEvent::wait_on_host() const {
  if (!event_) return;
  // Without this the runtime would create a context on the first GPU for a thread that has not chosen one:
  // half a gigabyte of another rank's memory.
  const c10::DeviceGuard guard(event_->device());
  event_->synchronize();
}

DeviceStream DeviceStream::current(c10::Device device) {
  if (device.is_cpu()) return DeviceStream(std::nullopt);
  return DeviceStream(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

DeviceStream DeviceStream::from_pool(c10::Device device, bool high_priority) {
  if (device.is_cpu()) return DeviceStream(std::nullopt);
  return DeviceStream(
      c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, high_priority));
}

void DeviceStream::wait(const DeviceEvent& event) const {
  if (stream_ && event.event_) event.event_->block(*stream_);
}

void DeviceStream::wait(const DeviceStream& other) const {
  DeviceEvent event;
  event.record(other);
  wait(event);
}

void DeviceStream::synchronize() const {
  if (stream_) stream_->synchronize();
}

}  // namespace hyperion
