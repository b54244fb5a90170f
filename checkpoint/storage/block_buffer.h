// Memory for blocks of a file or for a copy of the state, aligned as direct input and output want it, in huge
// pages where the system has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include <sys/mman.h>

#include "checkpoint/storage/manifest.h"

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
    ::madvise(data_, bytes_, MADV_HUGEPAGE);  // few page faults; few, long pieces for the device
  }
  ~BlockBuffer() { ::munmap(data_, bytes_); }
  BlockBuffer(const BlockBuffer&) = delete;
  BlockBuffer& operator=(const BlockBuffer&) = delete;

  std::byte* data() { return static_cast<std::byte*>(data_); }

 private:
  uint64_t bytes_;
  void* data_;
};

// Memory for kBlockBytes. Two that are not used are kept for the next files of this process, because the
// first write to new memory costs more than hashing it where a virtual machine gives unused memory back to
// its host.
class FileBlock {
 public:
  FileBlock();  // Throws std::bad_alloc.
  ~FileBlock();
  FileBlock(const FileBlock&) = delete;
  FileBlock& operator=(const FileBlock&) = delete;

  std::byte* data() { return buffer_->data(); }

 private:
  std::unique_ptr<BlockBuffer> buffer_;
};

}  // namespace hyperion::checkpoint
