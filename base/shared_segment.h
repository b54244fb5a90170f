// A SharedSegment is one rank's outgoing memory: a ring of messages that the rank writes and its peers
// read, with counters of everyone's progress. It is an anonymous memory file, so nothing is left behind
// however the job ends.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/durable.h"

namespace hyperion {

class SharedSegment {
 public:
  static constexpr uint32_t kSlots = 64;                 // maximum messages in flight
  static constexpr size_t kCapacity = size_t{16} << 20;  // maximum bytes of payload in flight
  static constexpr size_t kMaxMessage = size_t{1}
                                        << 20;  // well below the capacity: sending and reading overlap

  struct Header {
    alignas(64) std::atomic<uint32_t> posted;     // number of messages written (wraps around)
    alignas(64) std::atomic<uint32_t> completed;  // number of messages of all peers that this rank has read
    // Wakes a rank that waits for several counters: while `listening` is not 0, peers increment `bell` and
    // wake it after each change.
    alignas(64) std::atomic<uint32_t> bell;
    std::atomic<uint32_t> listening;
    std::array<uint64_t, kSlots> offsets;  // where message m starts: offsets[m % kSlots]
  };

  // Creates a segment of this process, with `extra` bytes of zeros behind the ring, which take memory once
  // written; it holds a lock that ends with the process. Returns nullopt and sets errno on failure: a limit
  // on file size applies to memory files too.
  static std::optional<SharedSegment> create(size_t extra = 0);
  // Opens another process's segment; nullopt if it cannot be opened or has another size.
  static std::optional<SharedSegment> open(int pid, int fd, size_t extra = 0);

  int fd() const { return fd_.get(); }
  Header& header() const { return *static_cast<Header*>(memory_.get()); }
  std::byte* payload(uint64_t offset) const {
    return static_cast<std::byte*>(memory_.get()) + sizeof(Header) + offset;
  }
  std::byte* extra() const { return payload(kCapacity); }  // aligned to 64
  const std::byte* message(uint32_t index) const { return payload(header().offsets[index % kSlots]); }
  // Returns whether the creating process has ended, as seen by a process that opened the segment.
  bool owner_ended() const;

 private:
  struct Unmap {
    size_t size;
    void operator()(void* memory) const;
  };
  SharedSegment(Descriptor fd, void* memory, size_t size)
      : fd_(std::move(fd)), memory_(memory, Unmap{size}) {}
  static std::optional<SharedSegment> map(Descriptor fd, size_t size);

  Descriptor fd_;
  std::unique_ptr<void, Unmap> memory_;
};

// Sleeps until `counter` no longer holds `seen`, a wake-up, or 100 ms. Works across processes.
void wait_for_change(const std::atomic<uint32_t>& counter, uint32_t seen);
void wake_all(const std::atomic<uint32_t>& counter);

}  // namespace hyperion
