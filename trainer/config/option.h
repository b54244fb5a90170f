// An Option describes one configuration key: its member of JobConfig, its allowed values, its meaning and the
// feature that uses it. schema.h lists all keys; the TOML reader, the command line, --help and the docs use
// that list.
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

// A value that is read from or written to a JobConfig; monostate means unset.
using Value =
    std::variant<std::monostate, bool, int64_t, double, std::string, std::vector<std::string>,
                 std::vector<std::vector<std::string>>, TextTable, DataSources, ParameterGroups, BatchRamp>;

// The alternatives of Value except monostate, in its order.
enum class Kind { kBool, kInteger, kNumber, kText, kList, kListOfLists, kTable, kSources, kGroups, kPairs };

// Reads and writes members of one C++ type. schema.cpp creates them.
struct MemberType {
  Kind kind;
  bool optional;                     // the member may be unset
  std::vector<std::string> choices;  // texts of an enumeration
  Value (*read)(const void* member);
  bool (*assign)(const Value& value, void* member);  // false: the value has another type
};

// A capability that the configuration switches on. Its options matter only while it is on.
struct Feature {
  std::string key;        // the option that switches it
  std::string condition;  // the condition in words: "checkpoint.enable = true"
  bool (*on)(const JobConfig&);
  std::string refusal;  // reason why it cannot be switched on; empty if it works
};

struct TableKeys;

struct Option {
  std::string name{};  // dotted: "training.dataloader.num_workers"
  const MemberType* type = nullptr;
  size_t offset = 0;  // byte offset of the member in a JobConfig, or in an entry of a list of tables
  std::string meaning{};

  std::vector<std::string> choices{};  // allowed texts, also for each entry of a list
  std::optional<double> minimum{};     // inclusive unless above_minimum
  std::optional<double> maximum{};     // inclusive unless below_maximum
  std::optional<int64_t> special{};    // one more value outside [minimum, maximum]
  bool above_minimum = false;
  bool below_maximum = false;
  bool infinite = false;  // a number may be infinite
  bool any_case = false;  // a choice may be written in upper or lower case
  std::string form{};     // if set, a text must be a positive whole number or one of `choices`
  bool path = false;      // a file or folder; must not be empty, which would mean the current folder
  const TableKeys* table = nullptr;  // of a list of tables: the keys of each
  std::string need{};                // if set, each table needs this key; the reason in words
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
  // Allows only these values of an enumeration.
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
  Option& tables_of(const TableKeys& keys) { return table = &keys, *this; }
  Option& needed(std::string reason) { return need = std::move(reason), *this; }
  Option& when(const Feature& value) { return feature = &value, *this; }
  Option& only_python() { return python_only = true, *this; }
  Option& hyperion_only() { return in_torchtitan = false, *this; }

  // Returns whether the value is a path, a folder below another folder or a schedule file. The last two may
  // be empty.
  bool names_a_file() const { return path || name.ends_with("_folder") || name.ends_with("_csv"); }
  Kind kind() const { return type->kind; }
  bool optional() const { return type->optional; }

  // Split the name: "training.dataloader" and "num_workers".
  std::string_view section() const { return std::string_view(name).substr(0, name.rfind('.')); }
  std::string_view key() const { return std::string_view(name).substr(name.rfind('.') + 1); }
};

// The keys of one table of a list.
struct TableKeys {
  std::vector<Option> options;
  const void* defaults;  // a table with the default of each key
};

// Stores `value` if it has the option's type (a whole number is a number too) and range; a path goes through
// expand_home(). Otherwise leaves `config` unchanged and returns false.
bool assign(const Option& option, const Value& value, JobConfig& config);
// Does the same for a key of a list of tables.
bool assign(const Option& option, const Value& value, DataSource& source);
bool assign(const Option& option, const Value& value, ParameterGroup& group);

Value read(const Option& option, const JobConfig& config);

// Parses a command-line text by the option's type, without checking its range: "None" unsets an optional,
// "a,b" is a list, "a,b;c" a list of lists, "a=b,c=d" a table, "0,8;9,16" (or as in TOML) pairs. Returns
// nullopt if the text does not have that type; lists of tables are in files only.
std::optional<Value> parse_text(const Option& option, std::string_view text);

// Formats a value as TOML: 0.0008, "text", ["a", "b"], { "a" = "b" }; "null" if unset, which TOML cannot
// write.
std::string toml_text(const Value& value);
// Formats a value as the command line reads it: texts without quotes, "None" if unset.
std::string command_line_text(const Value& value);

// Describes the values that the option accepts: "a whole number of at least 1, or -1", "\"full\", \"none\" or
// ...".
std::string expected(const Option& option);
// Returns "true/false", "integer", "number", "text", "list", "list of lists", "table", "list of tables" or
// "list of pairs".
std::string type_name(const Option& option);

}  // namespace hyperion::config
