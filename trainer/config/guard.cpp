#include "trainer/config/guard.h"

#include <cstdint>

#include <fmt/format.h>

namespace hyperion {
namespace {

constexpr size_t kMostBrackets = 200;  // '[' and '{' of a file
constexpr size_t kMostDots = 100;      // of a line
constexpr size_t kMostCommas = 5000;   // of a file

// The length of the well-formed UTF-8 sequence at the start of `text` (Unicode 15, table 3-7); 0 when it is
// ill-formed.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const auto follows = [&](size_t i, uint8_t low = 0x80, uint8_t high = 0xbf) {
    return byte(i) >= low && byte(i) <= high;
  };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return follows(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    return follows(1, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf) && follows(2) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    return follows(1, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf) && follows(2) && follows(3)
               ? 4
               : 0;
  }
  return 0;
}

}  // namespace

std::optional<std::string> unsafe_toml(std::string_view text) {
  if (text.size() > kLargestToml)
    return fmt::format("1:1: the file has {} bytes, at most {} are read", text.size(), kLargestToml);
  size_t line = 1, line_start = 0, brackets = 0, dots = 0, commas = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text.substr(i));
    const char c = text[i];
    const char* wrong = nullptr;
    if (length == 0) wrong = "the file is not UTF-8 here";
    if (c == '\0') wrong = "the file holds a NUL byte here";
    if ((c == '[' || c == '{') && ++brackets > kMostBrackets)
      wrong = "the file has more than 200 opening brackets";
    if (c == '.' && ++dots > kMostDots) wrong = "the line has more than 100 dots";
    if (c == ',' && ++commas > kMostCommas) wrong = "the file has more than 5000 commas";
    if (wrong != nullptr) return fmt::format("{}:{}: {}", line, i - line_start + 1, wrong);
    i += length;
    if (c == '\n') {
      ++line;
      line_start = i;
      dots = 0;
    }
  }
  return std::nullopt;
}

}  // namespace hyperion
