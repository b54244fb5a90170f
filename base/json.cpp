#include "base/json.h"

#include <utility>
#include <vector>

#include "base/error.h"

namespace hyperion {
namespace {

using nlohmann::json;

constexpr size_t kMaxValues = size_t{1} << 22;

// Builds the value from the parser's events, which come without recursion.
class Builder : public nlohmann::json_sax<json> {
 public:
  explicit Builder(size_t max_depth) : max_depth_(max_depth) {}

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
    return fail(fmt::format("{:.300}", error.what()));
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

  size_t max_depth_, values_ = 0;
  std::vector<json*> open_;
  std::string key_;
};

}  // namespace

json parse_json(std::string_view text, const std::string& name, size_t max_depth) {
  // The parser takes a zero byte for the end and skips a byte order mark; neither belongs to JSON.
  if (text.find('\0') != text.npos || text.starts_with("\xEF\xBB\xBF"))
    throw_data("{}: is not valid JSON: it has a zero byte or a byte order mark", name);
  Builder builder(max_depth);
  if (!json::sax_parse(text.begin(), text.end(), &builder))
    throw_data("{}: is not valid JSON: {}", name, builder.problem);
  return std::move(builder.root);
}

}  // namespace hyperion
