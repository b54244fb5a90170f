// One configuration key: where its value lives in JobConfig, which values it takes, what it means and when it
// matters. The list of all keys is schema.h; reading TOML, parsing the command line, --help and the docs all
// work from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trainer/config/job_config.h"

namespace hyperion::config {

// A value on its way into or out of a JobConfig; monostate: not set.
using Value = std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<std::string>,
                           std::vector<std::vector<std::string>>, TextTable>;

// The alternatives of Value but monostate, in its order.
enum class Kind { kBool, kInteger, kNumber, kText, kList, kListOfLists, kTable };

// How members of one C++ type are read and written: schema.cpp makes them.
struct MemberType {
  Kind kind;
  bool optional;                     // it may be unset
  std::vector<std::string> choices;  // the texts of an enumeration
  Value (*read)(const void* member);
  bool (*assign)(const Value& value, void* member);  // false: the value is of another type
};

// A capability that the configuration switches on. Options that belong to it only matter while it is on.
struct Feature {
  std::string key;        // the option that switches it
  std::string condition;  // when it is on, for readers: "checkpoint.enable = true"
  bool (*on)(const JobConfig&);
  std::string refusal;  // why switching it on is refused; empty: it works
};

struct Option {
  std::string name{};  // dotted: "training.dataloader.num_workers"
  const MemberType* type = nullptr;
  size_t offset = 0;  // of the member in a JobConfig, in bytes
  std::string meaning{};

  std::vector<std::string> choices{};  // of a text, or of each entry of a list
  std::optional<double> minimum{};     // of a number, inclusive unless above_minimum
  std::optional<double> maximum{};     // inclusive unless below_maximum
  std::optional<int64_t> special{};    // one more value outside [minimum, maximum]
  bool above_minimum = false;
  bool below_maximum = false;
  bool infinite = false;  // a number may be infinite
  bool any_case = false;  // a choice may be written in upper or lower case
  std::string form{};     // a text must be a positive whole number or one of `choices`; how to say it
  bool path = false;      // of a file or folder: not empty, which would stand for the current folder
  const Feature* feature = nullptr;  // the option matters while this is on
  bool python_only = false;          // configures Python: accepted, without effect
  bool in_torchtitan = true;         // torchtitan v0.2.2 has this key

  Option& at_least(double value) { return minimum = value, *this; }
  Option& above(double value) { return minimum = value, above_minimum = true, *this; }
  Option& at_most(double value) { return maximum = value, *this; }
  Option& below(double value) { return maximum = value, below_maximum = true, *this; }
  Option& or_infinite() { return infinite = true, *this; }
  Option& or_value(int64_t value) { return special = value, *this; }
  Option& one_of(std::vector<std::string> texts) { return choices = std::move(texts), *this; }
  Option& in_any_case() { return any_case = true, *this; }
  Option& one_of(std::span<const std::string_view> texts) {
    return choices = {texts.begin(), texts.end()}, *this;
  }
  // Of an enumeration: these values alone.
  template <EnumWithTexts E>
  Option& only(std::initializer_list<E> values) {
    choices.clear();
    for (const E value : values) choices.emplace_back(text_of(value));
    return *this;
  }
  Option& number_text_or(std::string value, std::string form_text) {
    return choices = {std::move(value)}, form = std::move(form_text), *this;
  }
  Option& a_path() { return path = true, *this; }
  Option& when(const Feature& value) { return feature = &value, *this; }
  Option& only_python() { return python_only = true, *this; }
  Option& hyperion_only() { return in_torchtitan = false, *this; }

  // Also of a folder under another one or a file of a schedule, which may be empty.
  bool names_a_file() const { return path || name.ends_with("_folder") || name.ends_with("_csv"); }
  Kind kind() const { return type->kind; }
  bool optional() const { return type->optional; }

  // "training.dataloader" and "num_workers".
  std::string_view section() const { return std::string_view(name).substr(0, name.rfind('.')); }
  std::string_view key() const { return std::string_view(name).substr(name.rfind('.') + 1); }
};

// Stores `value`, of a path as expand_home() makes it, when it has the option's type and is in its range (a
// whole number is a number too); otherwise leaves `config` alone and returns false.
bool assign(const Option& option, const Value& value, JobConfig& config);

Value read(const Option& option, const JobConfig& config);

// The value a command-line text stands for by the option's type, whatever its range: "None" unsets an
// optional, "a,b" is a list, "a,b;c" a list of lists, "a=b,c=d" a table. nullopt when the text cannot be of
// that type.
std::optional<Value> parse_text(const Option& option, std::string_view text);

// As TOML writes it: 0.0008, "text", ["a", "b"], { "a" = "b" }; "null" for what is unset, which TOML cannot
// write.
std::string toml_text(const Value& value);
// As the command line takes it back: texts without quotes, "None" for what is unset.
std::string command_line_text(const Value& value);

// What the option accepts: "a whole number of at least 1, or -1", "\"full\", \"none\" or ...".
std::string expected(const Option& option);
// "true/false", "integer", "number", "text", "list", "list of lists", "table".
std::string type_name(const Option& option);

}  // namespace hyperion::config
