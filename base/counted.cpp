#include "base/counted.h"

#include <fmt/format.h>

namespace hyperion {

std::string human_count(uint64_t count) {
  const std::string digits = fmt::format("{}", count);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

std::string counted_text(uint64_t count, std::string_view noun, std::string_view plural) {
  if (count != 1 && !plural.empty()) return fmt::format("{} {}", human_count(count), plural);
  return fmt::format("{} {}{}", human_count(count), noun, count == 1 ? "" : "s");
}

}  // namespace hyperion
