// Decompresses .gz and .zst files, recognized by their first bytes and not by the file's name.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "base/files.h"

namespace hyperion::data {

bool is_compressed(const InputFile& file);

// The maximum size to which a file of `compressed` bytes may inflate: 64 times its size, but at least 256
// MiB and at most 64 GiB.
uint64_t inflation_limit(uint64_t compressed);

// Text in its own pages, which grow without being copied and are returned to the system at once.
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
  void reserve(uint64_t bytes);  // `bytes` must exceed capacity(); throws std::bad_alloc
  char* end() { return data_ + size_; }
  uint64_t free_bytes() const { return capacity_ - size_; }
  void advance(uint64_t bytes) { size_ += bytes; }  // call after writing `bytes` at end()

 private:
  char* data_ = nullptr;
  uint64_t capacity_ = 0, size_ = 0;
};

// Decompresses a file, which may be several gzip members or zstd frames in a row, entirely or up to at
// least its first `wanted` bytes. Throws Error(kBadData) naming the file if the data is damaged, ends
// early, or decompresses to more than `limit` bytes.
InflatedText decompress(const InputFile& file, uint64_t limit, uint64_t wanted = UINT64_MAX);

// Reads the first `size` bytes of a file's text, compressed or not, or all of it if it is shorter; reads no
// further.
InflatedText read_begin(const InputFile& file, uint64_t size);

}  // namespace hyperion::data
