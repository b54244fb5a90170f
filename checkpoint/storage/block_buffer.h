// Memory for blocks of a file or for a copy of the state, aligned for direct I/O, in huge pages if the
// system has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include <sys/mman.h>

#include "checkpoint/storage/manifest.h"

namespace hyperion::checkpoint {

// The alignment of file offsets, lengths and addresses in direct I/O; no common device needs more.
constexpr uint64_t kDirectAlignment = 4096;

class BlockBuffer {
 public:
  // Throws std::bad_alloc.
  explicit BlockBuffer(uint64_t bytes)
      : bytes_((bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment),
        data_(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    ::madvise(data_, bytes_, MADV_HUGEPAGE);  // fewer page faults; fewer, longer pieces for the device
  }
  ~BlockBuffer() { ::munmap(data_, bytes_); }
  BlockBuffer(const BlockBuffer&) = delete;
  BlockBuffer& operator=(const BlockBuffer&) = delete;

  std::byte* data() { return static_cast<std::byte*>(data_); }

 private:
  uint64_t bytes_;
  void* data_;
};

// Memory for kBlockBytes. Two unused blocks are kept for the next files of this process: if a virtual
// machine returns unused memory to its host, the first write to new memory costs more than hashing it.
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
