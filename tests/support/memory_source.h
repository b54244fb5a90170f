// Bytes in memory, as the readers of checkpoint/format take a file.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "checkpoint/types/byte_source.h"

namespace hyperion::test {

class MemorySource : public checkpoint::ByteSource {
 public:
  MemorySource(std::string name, std::span<const std::byte> bytes) : name_(std::move(name)), bytes_(bytes) {}

  const std::string& name() const override { return name_; }
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t offset, void* out, uint64_t bytes) override {
    require_inside(offset, bytes);
    if (bytes > 0) std::memcpy(out, bytes_.data() + offset, bytes);
  }

 private:
  std::string name_;
  std::span<const std::byte> bytes_;
};

}  // namespace hyperion::test
