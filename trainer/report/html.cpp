#include "trainer/report/html.h"

#include <cstdint>

namespace hyperion {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct CodePoint {
  char32_t value = 0;
  size_t size = 0;  // bytes; 0 when ill-formed
};

CodePoint decode(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < size) return {};
  char32_t value = lead & (0xFFu >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3Fu);
  }
  constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kSmallest[size] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return {};
  return {value, size};
}

bool shown_as_it_is(char32_t c) {
  if (c < 0x20) return c == '\n' || c == '\t';
  const bool control = c >= 0x7F && c <= 0x9F;
  const bool direction = (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0x200E ||
                         c == 0x200F || c == 0x061C;
  return !control && !direction;
}

}  // namespace

std::string html_text(std::string_view text, size_t longest) {
  std::string out;
  const size_t limit = text.size() < longest ? text.size() : longest;
  for (size_t at = 0; at < limit;) {
    const CodePoint c = decode(text.substr(at));
    if (c.size == 0) {
      out += kReplacement;
      ++at;
      continue;
    }
    switch (c.value) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += shown_as_it_is(c.value) ? text.substr(at, c.size) : kReplacement;
    }
    at += c.size;
  }
  if (limit < text.size()) out += "\u2026";
  return out;
}

}  // namespace hyperion
