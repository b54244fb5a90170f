// A ByteSource is a byte sequence that a format reader parses: a file, or an archive's part of one.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace hyperion::checkpoint {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual const std::string& name() const = 0;  // for messages: the file's path
  virtual uint64_t size() const = 0;
  // Throws Error(kBadData) naming the file if the range is outside or cannot be read.
  virtual void read(uint64_t offset, void* out, uint64_t bytes) = 0;
  // Announces that the range will be read soon, so that it may be prefetched.
  virtual void will_read(uint64_t /*offset*/, uint64_t /*bytes*/) {}

  std::string read_text(uint64_t offset, uint64_t bytes) {
    require_inside(offset, bytes);
    std::string text(bytes, '\0');
    read(offset, text.data(), bytes);
    return text;
  }
  void require_inside(uint64_t offset, uint64_t bytes) const {
    if (offset > size() || bytes > size() - offset)
      throw_data("{}: bytes {} to {} are wanted, but it has only {}", name(), offset, offset + bytes, size());
  }
};

// A part of another source; offsets count from its start.
class SliceSource : public ByteSource {
 public:
  SliceSource(ByteSource& whole, uint64_t begin, uint64_t bytes)
      : whole_(whole), begin_(begin), bytes_(bytes) {
    whole.require_inside(begin, bytes);
  }
  const std::string& name() const override { return whole_.name(); }
  uint64_t size() const override { return bytes_; }
  void read(uint64_t offset, void* out, uint64_t bytes) override {
    require_inside(offset, bytes);
    whole_.read(begin_ + offset, out, bytes);
  }
  void will_read(uint64_t offset, uint64_t bytes) override { whole_.will_read(begin_ + offset, bytes); }

 private:
  ByteSource& whole_;
  uint64_t begin_, bytes_;
};

}  // namespace hyperion::checkpoint
