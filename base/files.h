// Small helpers for files: whole-file reads, atomic replacement, and a read-only memory map.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace hyperion {

// The whole file. Throws Error(kBadData) naming the path and errno; `limit` bytes at most (default 1 GiB).
std::string read_file(const std::filesystem::path& path, size_t limit = size_t{1} << 30);

// Writes to a temporary name beside `path`, flushes to disk, renames. A reader sees the old or the new
// content.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);

// A read-only map of a whole file (an empty file gives an empty span).
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace hyperion
