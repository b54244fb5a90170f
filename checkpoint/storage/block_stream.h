// A BlockStream reads blocks of a file in a given order, ahead of the consumer, and compares each with its
// checksum: while the consumer copies one block, threads read and hash the next ones.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/storage/block_buffer.h"
#include "checkpoint/storage/manifest.h"

namespace hyperion::checkpoint {

// An open file and the record of its blocks. Both must outlive their readers.
struct BlockFile {
  int fd;
  const std::string& path;  // for messages
  const FileRecord& record;
};

// Reads [offset, offset + bytes) from `fd` into `out`. Direct I/O may read up to `capacity` bytes into
// `out`, beyond the end of the file. Throws Error(kBadData) naming path and byte.
void read_exactly(int fd, const std::string& path, uint64_t offset, std::byte* out, uint64_t bytes,
                  uint64_t capacity);

// Reads one block into `out`, whose capacity is the block's size rounded up to kDirectAlignment. Returns
// its size. Throws Error(kBadData) naming the path and the byte range if the checksum differs.
uint64_t read_block(const BlockFile& file, uint64_t block, std::byte* out);

// Serves one consumer thread.
class BlockStream {
 public:
  BlockStream(const BlockFile& file, std::vector<uint64_t> blocks);
  ~BlockStream();  // does not wait for blocks not yet taken
  BlockStream(const BlockStream&) = delete;
  BlockStream& operator=(const BlockStream&) = delete;

  bool done() const { return taken_ == blocks_.size(); }
  uint64_t next_block() const { return blocks_[taken_]; }  // requires !done()
  // Returns the next block, verified; it is valid until the next call. Rethrows the error of reading it.
  std::span<const std::byte> take();

 private:
  struct Slot {
    FileBlock block;
    std::span<const std::byte> data;
    std::exception_ptr error;
    bool ready = false;
  };
  void read_ahead();
  void fill(Slot& slot, size_t place);

  BlockFile file_;
  std::vector<uint64_t> blocks_;
  std::vector<Slot> slots_;  // a ring: blocks_[p] is read into slots_[p % slots_.size()]

  std::mutex mutex_;  // guards the slots' `ready` and the members below
  std::condition_variable changed_;
  size_t claimed_ = 0;   // number of blocks that a thread has begun to read
  size_t released_ = 0;  // number of blocks whose slots may be refilled
  bool stop_ = false;

  size_t taken_ = 0;  // used by the consumer only
  std::vector<std::thread> threads_;
};

}  // namespace hyperion::checkpoint
