#include "base/json.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"

namespace hyperion {
namespace {

using nlohmann::json;

constexpr size_t kMaxValues = size_t{1} << 22;

// Builds the value from the parser's events, without recursion.
class Builder : public nlohmann::json_sax<json> {
 public:
  Builder(size_t max_depth, size_t max_bytes) : max_depth_(max_depth), max_bytes_(max_bytes) {}

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(int64_t value) override { return add(value) != nullptr; }
  bool number_unsigned(uint64_t value) override { return add(value) != nullptr; }
  bool number_float(double value, const std::string&) override { return add(value) != nullptr; }
  bool string(std::string& value) override { return add(std::move(value)) != nullptr; }
  bool binary(json::binary_t&) override { return fail("binary value"); }
  bool start_object(size_t) override { return open(json::object()); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    if (open_.back()->contains(name)) return fail(fmt::format("key \"{:.100}\" twice in one object", name));
    key_ = std::move(name);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    std::string_view what = error.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    for (const std::string_view begin : {"] ", "parse error at "})
      if (const size_t at = what.find(begin); at != what.npos && at < 40)
        what.remove_prefix(at + begin.size());
    std::string text;  // `what` quotes bytes that may not be UTF-8
    for (const char* c = what.data(); *c != '\0' && text.size() < 300; ++c)
      text += static_cast<unsigned char>(*c) < 0x80
                  ? std::string(1, *c)
                  : fmt::format("\\x{:02x}", static_cast<unsigned char>(*c));
    const bool in_word = text.find("invalid literal") != text.npos || text.ends_with("'-I'");
    if (in_word && (text.ends_with("N'") || text.ends_with("I'")))  // where the parser stops in these
      text += " (JSON has no NaN, Infinity or None)";
    return fail(text);
  }

  json root;
  std::string problem;

 private:
  bool fail(std::string text) {
    problem = std::move(text);
    return false;
  }
  json* add(json value) {
    if (++values_ > kMaxValues) {
      fail(fmt::format("more than {} values", kMaxValues));
      return nullptr;
    }
    // Estimates the allocator's use: one block per container or text, one tree node per entry of an object,
    // and twice the size for a list, which doubles when it grows.
    if (value.is_structured() || value.is_string()) bytes_ += 48;
    if (value.is_string()) bytes_ += value.get_ref<const std::string&>().size();
    if (!open_.empty() && open_.back()->is_object()) {
      bytes_ += 80 + key_.size();
    } else if (!open_.empty()) {
      const auto& list = open_.back()->get_ref<const json::array_t&>();
      if (list.size() == list.capacity()) bytes_ += std::max<size_t>(1, 2 * list.size()) * sizeof(json);
    }
    if (bytes_ > max_bytes_) {
      fail("its values would take many times the memory of the text");
      return nullptr;
    }
    if (open_.empty()) return &(root = std::move(value));
    json& parent = *open_.back();
    if (parent.is_object()) return &(parent[key_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }
  bool open(json container) {
    if (open_.size() == max_depth_) return fail(fmt::format("more than {} levels of nesting", max_depth_));
    json* const place = add(std::move(container));
    if (place != nullptr)
      open_.push_back(place);  // stays where it is: no open container has younger siblings
    return place != nullptr;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  size_t max_depth_, max_bytes_, values_ = 0, bytes_ = 0;
  std::vector<json*> open_;
  std::string key_;
};

}  // namespace

json parse_json(std::string_view text, const std::string& name, size_t max_depth, size_t max_multiple) {
  // The parser treats a zero byte as the end and skips a byte order mark; neither belongs to JSON.
  if (text.find('\0') != text.npos || text.starts_with("\xEF\xBB\xBF"))
    throw_data("{}: is not valid JSON: it has a zero byte or a byte order mark", name);
  const size_t max_bytes =
      max_multiple == 0 ? std::numeric_limits<size_t>::max() : max_multiple * text.size() + (size_t{1} << 20);
  Builder builder(max_depth, max_bytes);
  if (!json::sax_parse(text.begin(), text.end(), &builder))
    throw_data("{}: is not valid JSON: {}", name, builder.problem);
  return std::move(builder.root);
}

JsonNode JsonNode::operator[](const std::string& key) const {
  const json* field = is_null() || !object().contains(key) ? nullptr : &object()[key];
  return {field, where_ + "." + key};
}

const json& JsonNode::object() const {
  if (!is_object()) refuse("an object");
  return *value_;
}

const json& JsonNode::array() const {
  if (is_null() || !value_->is_array()) refuse("a list");
  return *value_;
}

const std::string& JsonNode::text() const {
  if (!is_string()) refuse("a text");
  return value_->get_ref<const std::string&>();
}

bool JsonNode::flag(std::optional<bool> otherwise) const {
  if (is_null() && otherwise) return *otherwise;
  if (is_null() || !value_->is_boolean()) refuse("true or false");
  return value_->get<bool>();
}

uint64_t JsonNode::count(uint64_t min, uint64_t max) const {
  const bool fits = !is_null() && value_->is_number_unsigned() && *value_ >= min && *value_ <= max;
  if (!fits) refuse(fmt::format("a whole number from {} to {}", min, max));
  return value_->get<uint64_t>();
}

double JsonNode::positive_number() const {
  if (is_null() || !value_->is_number() || !(value_->get<double>() > 0)) refuse("a number above 0");
  return value_->get<double>();
}

void JsonNode::refuse(std::string_view expected) const {
  std::string is = "missing";
  if (!is_null())
    is = value_->is_structured() ? value_->type_name()
                                 : value_->dump(-1, ' ', true, json::error_handler_t::replace);
  throw_data("{} is {:.60}, expected {}", where_, is, expected);
}

}  // namespace hyperion
