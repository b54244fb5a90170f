#include "base/pack.h"

namespace hyperion::packing {

void write_size(std::string& out, uint64_t size) {
  for (; size >= 0x80; size >>= 7) out += static_cast<char>(size | 0x80);
  out += static_cast<char>(size);
}

std::string_view Reader::take(uint64_t bytes) {
  if (bytes > rest_.size()) refuse("fewer bytes than its values have");
  const std::string_view taken = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return taken;
}

uint64_t Reader::take_size() {
  uint64_t size = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<uint8_t>(take(1).front());
    if (shift > 56) refuse("a size above 2^63");
    size |= uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80) break;
  }
  if (size > rest_.size()) refuse("a size that its bytes do not have");
  return size;
}

void Reader::require_end() const {
  if (!rest_.empty()) refuse("more bytes than its values have");
}

void Reader::refuse(const char* what) {
  throw_bug("a message between processes of this job holds {}: do all of them run the same program?", what);
}

}  // namespace hyperion::packing
