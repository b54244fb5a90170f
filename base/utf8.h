// Handles outside UTF-8 text: validate it once, then decode it without checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hyperion {

constexpr char32_t kMaxCodePoint = 0x10FFFF;

// The length of the well-formed sequence that text starts with, or, negated, of the longest ill-formed part
// that a decoder replaces by one U+FFFD (Unicode, "maximal subpart"). `text` is not empty.
int utf8_sequence(std::string_view text);

bool is_valid_utf8(std::string_view text);

// `text` with U+FFFD for each maximal ill-formed part: what Python's bytes.decode("utf-8", "replace") gives.
std::string replace_ill_formed(std::string_view text);

void append_utf8(std::string& text, char32_t code_point);

inline bool is_ascii(char byte) {
  return static_cast<signed char>(byte) >= 0;
}

struct CodePoint {
  char32_t value;
  size_t size;  // in bytes
};

// The code point at `position` of valid UTF-8.
inline CodePoint decode_at(std::string_view text, size_t position) {
  const auto* p = reinterpret_cast<const uint8_t*>(text.data()) + position;
  const char32_t lead = p[0];
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (p[1] & 0x3Fu), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu), 3};
  return {(lead & 0x07) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu), 4};
}

}  // namespace hyperion
