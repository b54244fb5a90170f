// Host memory that a background save copies the state to: one for all saves of a job.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "checkpoint/state.h"

namespace hyperion::checkpoint {

// For one thread at a time.
class StagingPool {
 public:
  explicit StagingPool(MemoryMover& mover) : mover_(mover) {}
  ~StagingPool() { stop_touching(); }
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // Allocates `bytes` bytes unless it has as many, and ends what touch_in_background() began. Throws
  // std::bad_alloc, and has none then.
  void reserve(uint64_t bytes);
  // Gives the memory back. Not while touch_in_background() is under way.
  void release();
  uint64_t bytes() const { return bytes_; }
  const std::shared_ptr<std::byte>& memory() const { return memory_; }

  // Writes to each page from a thread that runs when a processor has nothing else to do: until a page is
  // written the system has no memory for it, and finding and clearing that takes longer than the copy of the
  // state. Does nothing where the memory is complete once it is allocated.
  void touch_in_background();

 private:
  void stop_touching();

  MemoryMover& mover_;
  std::shared_ptr<std::byte> memory_;
  uint64_t bytes_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace hyperion::checkpoint
