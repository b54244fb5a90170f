#include "app/report/html.h"

#include <algorithm>
#include <map>

#include "base/utf8.h"

namespace hyperion::report {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// False for control characters and for those that turn the direction of writing.
bool is_plain_character(char32_t c) {
  if (c < 0x20) return c == '\n' || c == '\t';
  const bool control = c >= 0x7F && c <= 0x9F;
  const bool direction = (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0x200E ||
                         c == 0x200F || c == 0x061C;
  return !control && !direction;
}

}  // namespace

std::string html_text(std::string_view text, size_t max_bytes) {
  static const std::map<char32_t, std::string_view> kEntities = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  std::string out;
  const size_t limit = std::min(text.size(), max_bytes);
  for (size_t at = 0; at < limit;) {
    if (const int size = utf8_sequence(text.substr(at)); size < 0) {
      out += kReplacement;
      at += static_cast<size_t>(-size);
      continue;
    }
    const CodePoint c = decode_at(text, at);
    if (const auto entity = kEntities.find(c.value); entity != kEntities.end())
      out += entity->second;
    else
      out += is_plain_character(c.value) ? text.substr(at, c.size) : kReplacement;
    at += c.size;
  }
  if (limit < text.size()) out += "\u2026";
  return out;
}

}  // namespace hyperion::report
