// One rank's outgoing memory: a ring of messages that the rank writes and its peers read, with counters that
// say how far everyone is. Lives in an anonymous memory file, so that nothing is left behind however the job
// ends.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace hyperion {

class SharedSegment {
 public:
  static constexpr uint32_t kSlots = 64;                 // messages in flight at most
  static constexpr size_t kCapacity = size_t{16} << 20;  // bytes of payload in flight at most
  static constexpr size_t kMaxMessage = size_t{1}
                                        << 20;  // well below the capacity: sending and reading overlap

  struct Header {
    alignas(64) std::atomic<uint32_t> posted;     // messages written so far (wraps around)
    alignas(64) std::atomic<uint32_t> completed;  // messages of all peers that this rank has read
    std::array<uint64_t, kSlots> offsets;         // where message m starts: offsets[m % kSlots]
  };

  // A new segment of this process; it holds a lock that ends with the process. Nothing when the system gives
  // none (errno says why): a limit on the size of files holds for memory files too.
  static std::optional<SharedSegment> create();
  // Another process's segment; nothing when it cannot be opened.
  static std::optional<SharedSegment> open(int pid, int fd);
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&&) = delete;
  ~SharedSegment();

  int fd() const { return fd_; }
  Header& header() const { return *static_cast<Header*>(memory_); }
  std::byte* payload(uint64_t offset) const {
    return static_cast<std::byte*>(memory_) + sizeof(Header) + offset;
  }
  const std::byte* message(uint32_t index) const { return payload(header().offsets[index % kSlots]); }
  // Whether the process that created the segment has ended (as seen by a process that opened it).
  bool owner_ended() const;

 private:
  SharedSegment(int fd, void* memory) : fd_(fd), memory_(memory) {}
  int fd_;
  void* memory_;
};

// Sleeps until `counter` no longer holds `seen`, a wake-up, or 100 ms. Works between processes.
void wait_for_change(const std::atomic<uint32_t>& counter, uint32_t seen);
void wake_all(const std::atomic<uint32_t>& counter);

}  // namespace hyperion
