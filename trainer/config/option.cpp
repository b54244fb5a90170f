#include "trainer/config/option.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text.h"
#include "trainer/config/input_path.h"

namespace hyperion::config {
namespace {

bool in_range(const Option& option, double value) {
  if (!std::isfinite(value)) return option.infinite && value > 0;
  if (option.special && value == static_cast<double>(*option.special)) return true;
  if (option.minimum && (option.above_minimum ? value <= *option.minimum : value < *option.minimum))
    return false;
  if (option.maximum && (option.below_maximum ? value >= *option.maximum : value > *option.maximum))
    return false;
  return true;
}

bool is_choice(const Option& option, const std::string& text) {
  const auto same = [&](unsigned char a, unsigned char b) {
    return a == b || (option.any_case && std::tolower(a) == std::tolower(b));
  };
  return option.choices.empty() || std::ranges::any_of(option.choices, [&](const std::string& choice) {
           return std::ranges::equal(text, choice, same);
         });
}

// Digits with single underscores between them, as TOML and Python write whole numbers; a sign in front.
std::optional<int64_t> parse_integer(std::string_view text) {
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_' && i > 0 && i + 1 < text.size() &&
        std::isdigit(static_cast<unsigned char>(text[i - 1])))
      continue;
    digits += text[i];
  }
  if (digits.starts_with('+') && digits.size() > 1 && digits[1] != '-') digits.erase(0, 1);
  return hyperion::parse_number<int64_t>(digits);
}

std::optional<double> parse_number(std::string_view text) {
  if (const auto whole = parse_integer(text)) return static_cast<double>(*whole);
  if (text.starts_with('+')) text.remove_prefix(1);
  return hyperion::parse_number<double>(text);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    std::string_view part = text.substr(0, end);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    parts.emplace_back(part);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

// "0,8;9,16" or "[[0, 8], [9, 16]]"; nullopt if that is no list of pairs.
std::optional<Value> parse_pairs(std::string_view text) {
  std::string list;
  for (const char c : text)
    if (c == '[')
      list += list.empty() ? "" : ";";
    else if (c != ']' && c != ' ')
      list += c;
  BatchRamp pairs;
  for (const std::string& pair : split(list, ';')) {
    const std::vector<std::string> numbers = split(pair, ',');
    if (numbers.size() != 2) return std::nullopt;
    const auto first = parse_integer(numbers[0]), second = parse_integer(numbers[1]);
    if (!first || !second) return std::nullopt;
    pairs.emplace_back(*first, *second);
  }
  return Value(std::move(pairs));
}

// "old=new,old=new"; nullopt for an entry without '='.
std::optional<Value> parse_table(std::string_view text) {
  TextTable table;
  for (const std::string& entry : split(text, ',')) {
    const size_t equals = entry.find('=');
    if (equals == std::string::npos) return std::nullopt;
    table.emplace_back(entry.substr(0, equals), entry.substr(equals + 1));
  }
  return Value(std::move(table));
}

// A basic string of TOML, with its quotes.
std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (byte < 0x20 || byte == 0x7f)
      out += fmt::format("\\u{:04x}", byte);
    else
      out += c;
  }
  return out + '"';
}

std::string range_text(const Option& option) {
  std::string text;
  if (option.minimum)
    text += fmt::format(" {} {}", option.above_minimum ? "above" : "of at least", *option.minimum);
  if (option.maximum)
    text += fmt::format("{} {} {}", text.empty() ? "" : " and", option.below_maximum ? "below" : "at most",
                        *option.maximum);
  if (option.special) text += fmt::format(", or {}", *option.special);
  if (option.infinite) text += ", or inf";
  return text;
}

std::string choices_text(const Option& option) {
  std::string text;
  for (size_t i = 0; i < option.choices.size(); ++i) {
    if (i > 0) text += i + 1 == option.choices.size() ? " or " : ", ";
    text += toml_string(option.choices[i]);
  }
  return text;
}

bool acceptable(const Option& option, const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    if (option.path && text->empty()) return false;
    if (option.names_a_file() && !path_problem(*text).empty()) return false;
    if (option.form.empty()) return is_choice(option, *text);
    const auto whole = parse_integer(*text);
    return is_choice(option, *text) || (whole && *whole >= 1);
  }
  if (const auto* list = std::get_if<std::vector<std::string>>(&value))
    return std::ranges::all_of(*list, [&](const auto& entry) { return is_choice(option, entry); });
  if (const auto* table = std::get_if<TextTable>(&value)) {
    std::set<std::string> keys;
    return std::ranges::all_of(*table, [&](const auto& entry) {
      return !entry.first.empty() && !entry.second.empty() && keys.insert(entry.first).second;
    });
  }
  if (const auto* whole = std::get_if<int64_t>(&value)) return in_range(option, static_cast<double>(*whole));
  if (const auto* number = std::get_if<double>(&value)) return in_range(option, *number);
  return true;
}

}  // namespace

namespace {

bool assign_to(const Option& option, const Value& value, void* object) {
  if (!acceptable(option, value)) return false;
  const auto* text = std::get_if<std::string>(&value);
  const bool path = text != nullptr && option.names_a_file();
  return option.type->assign(path ? Value(expand_home(*text)) : value,
                             static_cast<std::byte*>(object) + option.offset);
}

}  // namespace

bool assign(const Option& option, const Value& value, JobConfig& config) {
  return assign_to(option, value, &config);
}

bool assign(const Option& option, const Value& value, DataSource& source) {
  return assign_to(option, value, &source);
}

bool assign(const Option& option, const Value& value, ParameterGroup& group) {
  return assign_to(option, value, &group);
}

Value read(const Option& option, const JobConfig& config) {
  return option.type->read(reinterpret_cast<const std::byte*>(&config) + option.offset);
}

std::optional<Value> parse_text(const Option& option, std::string_view text) {
  if (option.optional() && (text == "None" || text == "none")) return Value();
  const auto wrap = [](const auto& parsed) { return parsed ? std::optional<Value>(*parsed) : std::nullopt; };
  switch (option.kind()) {
    case Kind::kBool:
      if (text == "true" || text == "True") return Value(true);
      if (text == "false" || text == "False") return Value(false);
      return std::nullopt;
    case Kind::kInteger:
      return wrap(parse_integer(text));
    case Kind::kNumber:
      return wrap(parse_number(text));
    case Kind::kText:
      return Value(std::string(text));
    case Kind::kList:
      return Value(split(text, ','));
    case Kind::kTable:
      return parse_table(text);
    case Kind::kPairs:
      return parse_pairs(text);
    case Kind::kSources:
    case Kind::kGroups:
      return std::nullopt;
    case Kind::kListOfLists:
      break;
  }
  std::vector<std::vector<std::string>> lists;
  for (const std::string& part : split(text, ';')) lists.push_back(split(part, ','));
  return Value(std::move(lists));
}

namespace {

template <typename T>
Value value_of(const T& member) {
  return Value(member);
}
template <EnumWithTexts E>
Value value_of(const E& member) {
  return Value(std::string(text_of(member)));
}
template <typename T>
Value value_of(const std::optional<T>& member) {
  return member ? value_of(*member) : Value();
}

// Returns the keys that are set: { path = "a", weight = 2.0 }.
template <typename Table>
std::string toml_of_table(const Table& table) {
  std::vector<Value> defaults;
  for_each_key(Table{}, [&](const char*, const auto& member) { defaults.push_back(value_of(member)); });
  std::vector<std::string> entries;
  size_t i = 0;
  for_each_key(table, [&](const char* key, const auto& member) {
    const Value value = value_of(member);
    if (value != defaults[i++]) entries.push_back(fmt::format("{} = {}", key, toml_text(value)));
  });
  return fmt::format("{{ {} }}", fmt::join(entries, ", "));
}

}  // namespace

std::string toml_text(const Value& value) {
  return std::visit(
      [](const auto& held) -> std::string {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return "null";
        } else if constexpr (std::is_same_v<T, double>) {
          const std::string text = fmt::format("{}", held);
          return text.find_first_of(".ein") == std::string::npos ? text + ".0" : text;
        } else if constexpr (std::is_same_v<T, std::string>) {
          return toml_string(held);
        } else if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, int64_t>) {
          return fmt::format("{}", held);
        } else if constexpr (std::is_same_v<T, TextTable>) {
          std::vector<std::string> entries;
          for (const auto& [key, text] : held)
            entries.push_back(fmt::format("{} = {}", toml_string(key), toml_string(text)));
          return entries.empty() ? "{}" : fmt::format("{{ {} }}", fmt::join(entries, ", "));
        } else if constexpr (std::is_same_v<T, BatchRamp>) {
          std::vector<std::string> pairs;
          for (const auto& [begin, sequences] : held)
            pairs.push_back(fmt::format("[{}, {}]", begin, sequences));
          return fmt::format("[{}]", fmt::join(pairs, ", "));
        } else {
          std::vector<std::string> entries;
          if constexpr (std::is_same_v<T, DataSources> || std::is_same_v<T, ParameterGroups>)
            for (const auto& table : held) entries.push_back(toml_of_table(table));
          else
            for (const auto& entry : held) entries.push_back(toml_text(Value(entry)));
          return fmt::format("[{}]", fmt::join(entries, ", "));
        }
      },
      value);
}

std::string command_line_text(const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return std::holds_alternative<std::monostate>(value) ? "None" : toml_text(value);
}

std::string expected(const Option& option) {
  switch (option.kind()) {
    case Kind::kBool:
      return "true or false";
    case Kind::kInteger:
      return "a whole number" + range_text(option);
    case Kind::kNumber:
      return "a number" + range_text(option);
    case Kind::kText:
      if (option.path) return "a path, which is not empty";
      if (!option.form.empty()) return option.form;
      return option.choices.empty() ? "a text in quotes" : choices_text(option);
    case Kind::kList:
      return option.choices.empty() ? "a list of texts" : "a list of " + choices_text(option);
    case Kind::kTable:
      return "a table of at most 1000 texts, each key once, nothing empty";
    case Kind::kSources:
    case Kind::kGroups:
      return fmt::format("tables, each written [[{}]]", option.name);
    case Kind::kPairs:
      return "a list of pairs of whole numbers, such as [[0, 64], [1000, 128]]";
    case Kind::kListOfLists:
      break;
  }
  return "a list of lists of texts";
}

std::string type_name(const Option& option) {
  static constexpr const char* kNames[] = {"true/false",     "integer",       "number", "text",
                                           "list",           "list of lists", "table",  "list of tables",
                                           "list of tables", "list of pairs"};
  return kNames[static_cast<int>(option.kind())];
}

}  // namespace hyperion::config
