// Memory for one block of a file, aligned as direct input and output want it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include <sys/mman.h>

namespace hyperion::checkpoint {

// Of file offsets, lengths and addresses in direct transfers; the largest that common devices ask for.
constexpr uint64_t kDirectAlignment = 4096;

class BlockBuffer {
 public:
  // Throws std::bad_alloc.
  explicit BlockBuffer(uint64_t bytes)
      : bytes_((bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment),
        data_(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    ::madvise(data_, bytes_, MADV_HUGEPAGE);  // few, long pieces for the device
  }
  ~BlockBuffer() { ::munmap(data_, bytes_); }
  BlockBuffer(const BlockBuffer&) = delete;
  BlockBuffer& operator=(const BlockBuffer&) = delete;

  std::byte* data() { return static_cast<std::byte*>(data_); }

 private:
  uint64_t bytes_;
  void* data_;
};

}  // namespace hyperion::checkpoint
