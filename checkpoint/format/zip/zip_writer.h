// Writes zip archives as PyTorch reads them: records stored uncompressed in the folder "archive", ZIP64
// only if sizes require it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hyperion::checkpoint {

class ZipWriter {
 public:
  void add(std::string_view name, std::string_view content);

  // Adds a record whose `bytes` bytes are stored elsewhere. After begin_elsewhere, text() ends where they
  // begin, a multiple of `alignment` from the start of the archive; end_elsewhere() continues after them.
  void begin_elsewhere(std::string_view name, uint64_t bytes, uint64_t alignment);
  void end_elsewhere(uint32_t crc);

  void finish();            // writes the directory; nothing may follow
  std::string take_text();  // text written since the last call

 private:
  struct Record {
    std::string name;
    uint64_t at = 0, bytes = 0;
    uint32_t crc = 0;
    uint16_t flags = 0;
  };
  void local_header(const Record& record, uint64_t padding);
  uint64_t position() const { return taken_ + text_.size(); }
  template <typename T>
  void raw(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }

  std::string text_;
  uint64_t taken_ = 0;  // bytes before text_
  std::vector<Record> records_;
};

}  // namespace hyperion::checkpoint
