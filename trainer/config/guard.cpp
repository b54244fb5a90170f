#include "trainer/config/guard.h"

#include <fmt/format.h>

#include "base/utf8.h"

namespace hyperion::config {
namespace {

constexpr size_t kMostBrackets = 200;  // '[' and '{' of a file
constexpr size_t kMostDots = 100;      // of a line
constexpr size_t kMostCommas = 5000;   // of a file

}  // namespace

std::optional<std::string> toml_guard_problem(std::string_view text) {
  if (text.size() > kLargestToml)
    return fmt::format("1:1: the file has {} bytes, at most {} are read", text.size(), kLargestToml);
  size_t line = 1, line_start = 0, brackets = 0, dots = 0, commas = 0;
  for (size_t i = 0; i < text.size();) {
    const int length = utf8_sequence(text.substr(i));
    const char c = text[i];
    const char* wrong = nullptr;
    if (length < 0) wrong = "the file is not UTF-8 here";
    if (c == '\0') wrong = "the file holds a NUL byte here";
    if ((c == '[' || c == '{') && ++brackets > kMostBrackets)
      wrong = "the file has more than 200 opening brackets";
    if (c == '.' && ++dots > kMostDots) wrong = "the line has more than 100 dots";
    if (c == ',' && ++commas > kMostCommas) wrong = "the file has more than 5000 commas";
    if (wrong != nullptr) return fmt::format("{}:{}: {}", line, i - line_start + 1, wrong);
    i += static_cast<size_t>(length);
    if (c == '\n') {
      ++line;
      line_start = i;
      dots = 0;
    }
  }
  return std::nullopt;
}

}  // namespace hyperion::config
