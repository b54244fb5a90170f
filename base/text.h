// Splits lists and parses numbers in short texts: environment variables, names.
#pragma once

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

namespace hyperion {

// The pieces between separators, empty ones included: one more than separators. They are views of `text`.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> entries;
  for (size_t begin = 0, end = 0; begin <= text.size(); begin = end + 1) {
    end = std::min(text.find(separator, begin), text.size());
    entries.push_back(text.substr(begin, end - begin));
  }
  return entries;
}

// The number that the entire text represents, as std::from_chars reads it; nullopt if it is not one.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace hyperion
