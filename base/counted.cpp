#include "base/counted.h"

#include <fmt/format.h>

namespace hyperion {

std::string human_count(uint64_t count) {
  std::string digits = fmt::format("{}", count);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string counted_text(uint64_t count, std::string_view noun, std::string_view plural) {
  if (count != 1 && !plural.empty()) return fmt::format("{} {}", human_count(count), plural);
  return fmt::format("{} {}{}", human_count(count), noun, count == 1 ? "" : "s");
}

}  // namespace hyperion
