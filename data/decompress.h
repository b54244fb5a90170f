// Decompression of .gz and .zst, recognised by their first bytes and not by the file's name.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "base/files.h"

namespace hyperion::data {

bool is_compressed(const InputFile& file);

// What a file of `compressed` bytes may inflate to: 64 times its size, but at least 256 MiB and at most 64
// GiB.
uint64_t inflation_limit(uint64_t compressed);

// Text in pages of its own, which grow without being copied and are returned to the system at once.
class InflatedText {
 public:
  InflatedText() = default;
  InflatedText(InflatedText&& other) noexcept { *this = std::move(other); }
  InflatedText& operator=(InflatedText&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(capacity_, other.capacity_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~InflatedText();

  std::string_view view() const { return {data_, size_}; }
  uint64_t capacity() const { return capacity_; }
  void reserve(uint64_t bytes);  // more than capacity(); throws std::bad_alloc
  char* end() { return data_ + size_; }
  uint64_t free_bytes() const { return capacity_ - size_; }
  void advance(uint64_t bytes) { size_ += bytes; }  // as many were written at end()

 private:
  char* data_ = nullptr;
  uint64_t capacity_ = 0, size_ = 0;
};

// Everything in a compressed file, which may be several gzip members or zstd frames in a row, or its first
// `wanted` bytes, perhaps with some that follow. Throws Error(kBadData) that names the file when the data is
// damaged, ends early, or decompresses to more than `limit` bytes.
InflatedText decompress(const InputFile& file, uint64_t limit, uint64_t wanted = UINT64_MAX);

// The first `size` bytes of a file's text, compressed or not, or all when there are fewer; what follows is
// not read.
InflatedText read_begin(const InputFile& file, uint64_t size);

}  // namespace hyperion::data
