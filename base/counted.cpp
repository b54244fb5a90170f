#include "base/counted.h"

#include <fmt/format.h>

namespace hyperion {

std::string format_count(uint64_t count) {
  const std::string digits = fmt::format("{}", count);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

std::string format_bytes(uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes) / 1024;
  for (const char* unit : {"KiB", "MiB", "GiB", "TiB"}) {
    if (value < 999.5)
      return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, unit);
    value /= 1024;
  }
  return fmt::format("{:.2f} PiB", value);
}

std::string counted_text(uint64_t count, std::string_view noun, std::string_view plural) {
  if (count != 1 && !plural.empty()) return fmt::format("{} {}", format_count(count), plural);
  return fmt::format("{} {}{}", format_count(count), noun, count == 1 ? "" : "s");
}

}  // namespace hyperion
