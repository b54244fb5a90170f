// Streams and events that do nothing on CPU and are CUDA's on a GPU. They use c10's generic interface only,
// so code that includes this needs neither CUDA headers nor CUDA libraries.
#pragma once

#include <optional>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

namespace hyperion {

class DeviceStream;

// A point in a stream's work. On CPU every event is already complete.
class DeviceEvent {
 public:
  DeviceEvent() = default;  // not recorded: waiting for it returns at once
  // Marks the point reached by `stream`; recording again moves the mark.
  void record(const DeviceStream& stream);
  void wait_on_host() const;
  bool recorded() const { return event_.has_value(); }

 private:
  friend class DeviceStream;
  std::optional<c10::Event> event_;
};

class DeviceStream {
 public:
  // The calling thread's current stream.
  static DeviceStream current(c10::Device device);
  // A stream of the global pool; high-priority streams are for communication.
  static DeviceStream from_pool(c10::Device device, bool high_priority);

  // Later work of this stream starts after the event.
  void wait(const DeviceEvent& event) const;
  // Later work of this stream starts after the work queued on `other` so far.
  void wait(const DeviceStream& other) const;
  void synchronize() const;  // blocks the host

 private:
  friend class DeviceEvent;
  friend class StreamScope;
  explicit DeviceStream(std::optional<c10::Stream> stream) : stream_(stream) {}
  std::optional<c10::Stream> stream_;  // none on CPU
};

// Makes a stream the current one for a scope.
class StreamScope {
 public:
  explicit StreamScope(const DeviceStream& stream) {
    if (stream.stream_) guard_.emplace(*stream.stream_);
  }

 private:
  std::optional<c10::StreamGuard> guard_;
};

}  // namespace hyperion
