// Reads blocks of a file in a given order, ahead of the consumer, and compares each with its checksum: while
// the consumer copies one block, threads wait for the disk and hash the next ones.
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

// An open file and the record of its blocks. Both outlive their readers.
struct BlockFile {
  int fd;
  const std::string& path;  // for messages
  const FileRecord& record;
};

// Reads [offset, offset + bytes) from `fd` into `out`, which has `capacity` bytes: direct input reads up to
// that many, beyond the end of the file. Throws Error(kBadData) naming path and byte.
void read_exactly(int fd, const std::string& path, uint64_t offset, std::byte* out, uint64_t bytes,
                  uint64_t capacity);

// One block into `out`, whose capacity is that of the block rounded up to kDirectAlignment. Returns its
// bytes. Throws Error(kBadData) naming the path and the byte range when the checksum differs.
uint64_t read_block(const BlockFile& file, uint64_t block, std::byte* out);

// For one consumer.
class BlockStream {
 public:
  BlockStream(const BlockFile& file, std::vector<uint64_t> blocks);
  ~BlockStream();  // does not wait for blocks that were not taken
  BlockStream(const BlockStream&) = delete;
  BlockStream& operator=(const BlockStream&) = delete;

  bool done() const { return taken_ == blocks_.size(); }
  uint64_t next_block() const { return blocks_[taken_]; }  // not when done()
  // The next block, verified; it stays where it is until the next call. Throws what reading it threw.
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
  std::vector<Slot> slots_;  // place p of blocks_ is read into slot p mod their number

  std::mutex mutex_;  // guards the slots' `ready` and what follows
  std::condition_variable changed_;
  size_t claimed_ = 0;   // places that a thread has begun to read
  size_t released_ = 0;  // places whose slots may be filled again
  bool stop_ = false;

  size_t taken_ = 0;  // used by the consumer only
  std::vector<std::thread> threads_;
};

}  // namespace hyperion::checkpoint
