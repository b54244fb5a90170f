// Reads outside JSON strictly and with bounded memory.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace hyperion {

// Throws Error(kBadData) naming `name` and the place unless `text` is one JSON value in UTF-8 with unique
// keys per object, at most `max_depth` levels of nesting, at most 4 million values, and values that take at
// most 1 MiB plus `max_multiple` times the size of the text (0: no limit; "[{},{}]" takes 30 times).
nlohmann::json parse_json(std::string_view text, const std::string& name, size_t max_depth = 32,
                          size_t max_multiple = 0);

// A value with its place in its file, "tokenizer.json.model.vocab", or a missing value. Accessors check the
// type: a value of another type, or a missing one, is an Error(kBadData) naming the place and the expected
// type. A null field counts as missing, as in Hugging Face's files.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  bool is_null() const { return value_ == nullptr || value_->is_null(); }
  bool is_string() const { return !is_null() && value_->is_string(); }
  bool is_object() const { return !is_null() && value_->is_object(); }

  JsonNode operator[](const std::string& key) const;  // a field; missing if this node is
  const nlohmann::json& object() const;
  const nlohmann::json& array() const;
  const std::string& text() const;
  bool flag(std::optional<bool> otherwise = {}) const;
  uint64_t count(uint64_t min = 0, uint64_t max = std::numeric_limits<uint64_t>::max()) const;
  double positive_number() const;

  // Calls use(element) for each element of this list.
  template <typename Use>
  void each(const Use& use) const {
    size_t i = 0;
    for (const nlohmann::json& element : array())
      use(JsonNode(element, where_ + "[" + std::to_string(i++) + "]"));
  }
  [[noreturn]] void refuse(std::string_view expected) const;

 private:
  JsonNode(const nlohmann::json* value, std::string where) : value_(value), where_(std::move(where)) {}

  const nlohmann::json* value_;  // null: missing
  std::string where_;
};

}  // namespace hyperion
