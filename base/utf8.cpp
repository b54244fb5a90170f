#include "base/utf8.h"

#include <cstring>

namespace hyperion {
namespace {

constexpr uint64_t kHighBits = 0x8080808080808080;

// The first position from `from` on that does not start a well-formed sequence; text.size() if there is
// none.
size_t first_ill_formed(std::string_view text, size_t from) {
  size_t i = from;
  while (i < text.size()) {
    uint64_t eight;
    if (i + 8 <= text.size() && (std::memcpy(&eight, text.data() + i, 8), (eight & kHighBits) == 0)) {
      i += 8;
      continue;
    }
    const int size = utf8_sequence(text.substr(i));
    if (size < 0) return i;
    i += static_cast<size_t>(size);
  }
  return i;
}

}  // namespace

int utf8_sequence(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return -1;
  const int size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // no overlong forms, no surrogates, nothing above U+10FFFF: all show in the second byte
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (int i = 1; i < size; ++i, low = 0x80, high = 0xBF) {
    const auto at = static_cast<size_t>(i);
    if (at >= text.size() || byte(at) < low || byte(at) > high) return -i;
  }
  return size;
}

bool is_valid_utf8(std::string_view text) {
  return first_ill_formed(text, 0) == text.size();
}

std::string replace_ill_formed(std::string_view text) {
  std::string result;
  result.reserve(text.size() + 16);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = first_ill_formed(text, begin);
    result.append(text.substr(begin, end - begin));
    begin = end;
    if (begin == text.size()) break;
    result += "\xEF\xBF\xBD";
    begin += static_cast<size_t>(-utf8_sequence(text.substr(begin)));
  }
  return result;
}

void append_utf8(std::string& text, char32_t c) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(static_cast<uint8_t>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  }
}

}  // namespace hyperion
