#include "base/printable.h"

#include <fmt/format.h>

namespace hyperion {

std::string escape_control_bytes(std::string_view text, std::string_view kept) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 to U+009F, which steer some terminals too
      out += fmt::format("\\x{:02x}", next);
      ++i;
    } else if ((byte < 0x20 || byte == 0x7F) && kept.find(text[i]) == kept.npos) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string printable(std::string_view text, size_t limit) {
  if (text.size() <= limit / 4) return escape_control_bytes(text);
  std::string out = escape_control_bytes(text.substr(0, limit + 4));
  size_t cut = limit;  // moved to the boundary of a character
  while (cut < out.size() && cut < limit + 4 && (out[cut] & 0xC0) == 0x80) ++cut;
  if (out.size() > cut || text.size() > limit + 4) out = out.substr(0, cut) + "...";
  return out;
}

}  // namespace hyperion
