// Host memory to which background saves copy the state: one pool for all saves of a job.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>

#include "checkpoint/state.h"

namespace hyperion::checkpoint {

// Not thread-safe.
class StagingPool {
 public:
  explicit StagingPool(MemoryMover& mover) : mover_(mover) {}
  ~StagingPool() { stop_touching(); }
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // Allocates `bytes` bytes unless it has that many, and ends touch_in_background(). Throws std::bad_alloc;
  // the pool is then empty.
  void reserve(uint64_t bytes);
  // Frees the memory. Do not call while touch_in_background() runs.
  void release();
  uint64_t bytes() const { return bytes_; }
  const std::shared_ptr<std::byte>& memory() const { return memory_; }

  // Writes to each page from an idle-priority thread: the system has no memory for a page until it is
  // written, and populating pages takes longer than copying the state. Does nothing if allocation already
  // populates memory.
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
