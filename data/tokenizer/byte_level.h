// The byte-level alphabet of GPT-2 (its encoder.py, bytes_to_unicode): every byte has a printable character,
// in which tokenizer.json writes its tokens. Printable Latin-1 bytes stand for themselves, the others follow
// from U+0100 on.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace hyperion::data {

constexpr bool is_own_byte_character(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// The byte of each character of the alphabet (all below U+0144); -1 for a character outside it.
constexpr std::array<int16_t, 0x144> kByteOfCharacter = [] {
  std::array<int16_t, 0x144> table{};
  table.fill(-1);
  size_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte)
    table[is_own_byte_character(byte) ? static_cast<size_t>(byte) : next++] = static_cast<int16_t>(byte);
  return table;
}();

// The bytes that `token` (valid UTF-8) spells; nullopt if a character is outside the alphabet.
inline std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t i = 0; i < token.size();) {
    const CodePoint c = decode_at(token, i);
    if (c.value >= kByteOfCharacter.size() || kByteOfCharacter[c.value] < 0) return std::nullopt;
    bytes += static_cast<char>(static_cast<uint8_t>(kByteOfCharacter[c.value]));
    i += c.size;
  }
  return bytes;
}

}  // namespace hyperion::data
