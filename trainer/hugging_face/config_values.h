// Reads values of a config.json that may be missing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json.h"

namespace hyperion::hugging_face {

inline int64_t size_in(const JsonNode& node, std::optional<int64_t> otherwise = {}) {
  if (node.is_null() && otherwise) return *otherwise;
  return static_cast<int64_t>(node.count(1, uint64_t{1} << 31));
}
inline double number_in(const JsonNode& node, double otherwise) {
  return node.is_null() ? otherwise : node.positive_number();
}
inline std::string text_in(const JsonNode& node, const std::string& otherwise) {
  return node.is_null() ? otherwise : node.text();
}
// Refuses a switch that is on.
inline void must_be_off(const JsonNode& node, std::string_view meaning) {
  if (node.flag(false)) throw_config("{} = true, but {}", node.where(), meaning);
}
// Checks a second key for the same setting.
inline void require_same_number(const JsonNode& node, int64_t value, const char* other) {
  if (!node.is_null() && size_in(node) != value)
    node.refuse(fmt::format("{}, the value of {}", value, other));
}

}  // namespace hyperion::hugging_face
