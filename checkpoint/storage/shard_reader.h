// A ShardReader reads one file of a checkpoint and compares every block that it touches with the manifest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/durable.h"
#include "base/files.h"
#include "checkpoint/storage/block_stream.h"
#include "checkpoint/types/byte_source.h"

namespace hyperion::checkpoint {

struct ByteRange {
  uint64_t offset = 0, bytes = 0;
};

// Not thread-safe.
class ShardReader : public ByteSource {
 public:
  // Links out of the folder are refused, except where a folder consists of them (the Hugging Face cache).
  // `record` is this file's, or null if there is none: then nothing can be verified. Throws Error(kBadData)
  // if the file is missing, is not a regular file in this folder, or has another size.
  ShardReader(const std::filesystem::path& folder, const std::string& name,
              const FileRecord* record = nullptr, Links links = Links::kRefuse);
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;

  const std::string& name() const override { return path_; }
  uint64_t size() const override { return size_; }
  // Reads every block that the range touches completely, bypassing the page cache if possible, and verifies
  // it; the last partly used block is kept. A block that differs throws Error(kBadData) naming the file and
  // the block's byte range.
  void read(uint64_t offset, void* out, uint64_t bytes) override;
  // Reads and verifies every block. Requires a record.
  void verify();
  // Prefetches bytes that are read without verification; expect() is for verified blocks.
  void will_read(uint64_t offset, uint64_t bytes) override;
  // Starts prefetching the blocks of these ranges, which must then be read in this order. Reads elsewhere
  // cost no more than without it. Does nothing without a record.
  void expect(const std::vector<ByteRange>& ranges);

 private:
  BlockFile file() const { return {file_.get(), path_, *record_}; }
  bool is_expected(uint64_t block);
  std::span<const std::byte> held_block(uint64_t block);
  void read_unverified(uint64_t offset, std::byte* out, uint64_t bytes);

  std::string path_;
  Descriptor file_;
  uint64_t size_ = 0;
  std::optional<FileRecord> record_;
  std::span<const std::byte> held_;  // all of held_block_, in buffer_ or in expected_; or empty
  uint64_t held_block_ = 0;
  std::unique_ptr<FileBlock> buffer_;
  std::unique_ptr<BlockStream> expected_;
};

// Reads a file back completely, from the disk itself, and compares it with its record. Throws
// Error(kBadData) naming the file and the byte range.
void verify_file(const std::filesystem::path& folder, const FileRecord& record);

// Flushes a file and drops it from the page cache.
void evict(const std::filesystem::path& path);

}  // namespace hyperion::checkpoint
