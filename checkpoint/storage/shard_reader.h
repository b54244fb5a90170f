// Reads one file of a checkpoint and compares every block that it touches with the manifest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/durable.h"
#include "checkpoint/byte_source.h"
#include "checkpoint/storage/block_buffer.h"
#include "checkpoint/storage/manifest.h"

namespace hyperion {

// Links out of a folder are refused, except where a tool lays its folders out with them (the Hugging Face
// cache).
enum class Links { kRefuse, kFollow };

// For one thread at a time.
class ShardReader : public ByteSource {
 public:
  // `record`: of this file, or null when nothing is known of it: then nothing can be verified. Throws
  // Error(kBadData) when the file is missing, is no regular file in this folder, or has another size.
  ShardReader(const std::filesystem::path& folder, const std::string& name,
              const FileRecord* record = nullptr, uint64_t block_bytes = kBlockBytes,
              Links links = Links::kRefuse);

  const std::string& name() const override { return path_; }
  uint64_t size() const override { return size_; }
  // Every block that the range touches is read whole, past the page cache where that can be, and verified;
  // the last one that was not wanted whole is kept. A block that differs is an Error(kBadData) naming the
  // file and the block's byte range.
  void read(uint64_t offset, void* out, uint64_t bytes) override;

 private:
  const std::byte* held_block(uint64_t block);
  void read_unverified(uint64_t offset, std::byte* out, uint64_t bytes);

  std::string path_;
  Descriptor file_;
  uint64_t size_ = 0;
  uint64_t block_bytes_;
  std::optional<FileRecord> record_;
  std::unique_ptr<BlockBuffer> held_;  // the block in it is held_block_
  uint64_t held_block_ = UINT64_MAX;
};

// Reads a whole file back and compares it with its record. `direct`: from the disk itself (O_DIRECT; where
// that is not to be had, after the file was dropped from the page cache). Throws Error(kBadData) naming the
// file and the byte range.
void verify_file(const std::filesystem::path& folder, const FileRecord& record, uint64_t block_bytes,
                 bool direct);

// Flushes a file and drops it from the page cache.
void evict(const std::filesystem::path& path);

}  // namespace hyperion
