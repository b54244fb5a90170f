// Reads one file of a checkpoint and compares every block that it touches with the manifest.
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

// For one thread at a time.
class ShardReader : public ByteSource {
 public:
  // Links out of the folder are refused, except where a folder consists of them (the Hugging Face
  // cache). `record`: of this file, or null when there is none: then nothing can be verified. Throws
  // Error(kBadData) when the file is missing, is no regular file in this folder, or has another size.
  ShardReader(const std::filesystem::path& folder, const std::string& name,
              const FileRecord* record = nullptr, Links links = Links::kRefuse);
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;

  const std::string& name() const override { return path_; }
  uint64_t size() const override { return size_; }
  // Every block that the range touches is read completely, bypassing the page cache where possible, and
  // verified; the last one that was used only in part is kept. A block that differs is an Error(kBadData)
  // naming the file and the block's byte range.
  void read(uint64_t offset, void* out, uint64_t bytes) override;
  // Reads every block. The file has a record.
  void verify();
  // For what is read without being verified; blocks that are have expect().
  void will_read(uint64_t offset, uint64_t bytes) override;
  // Starts reading ahead the blocks of these ranges, which are to be read in this order. Reads elsewhere cost
  // no more than without it. Does nothing where nothing can be verified.
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
  std::span<const std::byte> held_;  // all of held_block_, in own_ or in expected_; or empty
  uint64_t held_block_ = 0;
  std::unique_ptr<FileBlock> own_;
  std::unique_ptr<BlockStream> expected_;
};

// Reads a file back completely, from the disk itself, and compares it with its record. Throws Error(kBadData)
// naming the file and the byte range.
void verify_file(const std::filesystem::path& folder, const FileRecord& record);

// Flushes a file and drops it from the page cache.
void evict(const std::filesystem::path& path);

}  // namespace hyperion::checkpoint
