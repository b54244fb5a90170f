// A ShardWriter writes one file of a checkpoint, durably and with the checksums of its blocks.
//
// Bytes are copied into one of two aligned blocks and hashed there, while they are in the cache; a thread
// writes the other block past the page cache (O_DIRECT). A full block is queued while the other is still
// written, so the thread never waits. The disk therefore writes from the first block on, fsync has nothing
// left to do, the page cache stays untouched, and a byte that changes after the hash is detected when the
// file is read. If O_DIRECT is unavailable, writes are buffered and their write-back starts at once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/durable.h"
#include "checkpoint/storage/block_buffer.h"
#include "checkpoint/storage/manifest.h"

namespace hyperion::checkpoint {

// Not thread-safe. Every failure throws Error(kSaveFailed) naming the rank, the path, the byte and the
// errno; the file is unusable after it.
class ShardWriter {
 public:
  // Creates the file, which must not exist. `rank` and `expected_total`, the bytes of all files of the
  // checkpoint (0: unknown), are for messages about ENOSPC.
  ShardWriter(const std::filesystem::path& folder, const std::string& name, int rank,
              uint64_t expected_total = 0);
  ~ShardWriter();  // without close() the file stays, unfinished
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  void append(const void* data, uint64_t bytes);
  uint64_t position() const { return record_.bytes; }
  // Returns when all bytes are on disk; the folder's entry is not, see sync_folder().
  FileRecord close();

 private:
  void hash_block();
  void hand_block_to_thread();
  void wait_for_block(const std::byte* block);  // waits until the thread has written it
  void stop_thread();
  void write_loop();
  void write_block(std::byte* data, uint64_t bytes, uint64_t offset);
  void write_buffered();
  [[noreturn]] void fail(const char* what, uint64_t at, uint64_t bytes, int error) const;

  std::filesystem::path path_;
  int rank_;
  uint64_t expected_total_;
  Descriptor file_;
  bool direct_ = true;  // used by the thread only, while it runs
  FileRecord record_;
  std::unique_ptr<FileBlock> blocks_[2];
  int current_ = 0;    // the block that append() fills
  uint64_t used_ = 0;  // bytes in the current block

  std::thread thread_;  // started by the first full block
  std::mutex mutex_;    // guards the members below
  std::condition_variable changed_;
  std::byte* queued_ = nullptr;  // a full block, which the thread writes after the other
  uint64_t queued_offset_ = 0;
  std::byte* written_ = nullptr;  // the block that the thread is writing
  bool stop_ = false;
  std::exception_ptr error_;
};

}  // namespace hyperion::checkpoint
