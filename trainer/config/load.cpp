#include "trainer/config/load.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml.hpp>

#include "base/counted.h"
#include "base/error.h"
#include "base/files.h"
#include "base/nearest.h"
#include "base/printable.h"
#include "trainer/config/guard.h"
#include "trainer/config/schema.h"
#include "trainer/config/suggest.h"

namespace hyperion {
namespace {

constexpr size_t kMostProblems = 50;  // more are only counted

// Fit for one line of a terminal: control characters as spaces, at most 60 bytes, cut between characters.
std::string shown(std::string text) {
  constexpr size_t kMost = 60;
  if (text.size() > kMost) {
    size_t end = kMost;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    text = text.substr(0, end) + "...";
  }
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

// "; did you mean dataloader?" for the first text that is not among the option's choices.
std::string choice_hint(const Option& option, const Value& value) {
  std::vector<std::string> texts;
  if (const auto* text = std::get_if<std::string>(&value)) texts = {*text};
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) texts = *list;
  for (const std::string& text : texts)
    if (std::find(option.choices.begin(), option.choices.end(), text) == option.choices.end())
      return nearest_name(text, option.choices).empty() && option.key() == "dataset"
                 ? fmt::format("; files, whatever they are called, are named by {}_path", option.name)
                 : did_you_mean(nearest_name(text, option.choices));
  return "";
}

// toml11 turns a number that does not fit into the largest one: read the text again where it says so.
bool fits(const toml::value& value, const std::string& source) {
  std::string digits = source;
  std::erase(digits, '_');
  if (digits.starts_with('+')) digits.erase(0, 1);
  const char* const end = digits.data() + digits.size();
  if (value.is_integer() && (value.as_integer() == std::numeric_limits<int64_t>::max() ||
                             value.as_integer() == std::numeric_limits<int64_t>::min())) {
    int64_t again = 0;
    return std::from_chars(digits.data(), end, again).ec == std::errc();
  }
  if (value.is_floating() && std::abs(value.as_floating()) == std::numeric_limits<double>::max()) {
    double again = 0;
    return std::from_chars(digits.data(), end, again).ec == std::errc();
  }
  return true;
}

constexpr size_t kMostEntries = 1000;  // of a table; finding each one's place reads the file from its start

// Adds the texts of a table and of the tables in it, whose keys TOML writes as a.b: they are one name here.
bool collect_texts(const toml::value& value, const std::string& prefix,
                   std::vector<std::pair<toml::source_location, std::pair<std::string, std::string>>>& out) {
  for (const auto& [key, entry] : value.as_table()) {
    const std::string name = prefix.empty() ? key : prefix + '.' + key;
    if (out.size() >= kMostEntries) return false;
    if (entry.is_table()) {
      if (!collect_texts(entry, name, out)) return false;
    } else if (entry.is_string()) {
      out.emplace_back(entry.location(), std::pair(name, entry.as_string().str));
    } else {
      return false;
    }
  }
  return true;
}

std::optional<Value> to_table(const toml::value& value) {
  std::vector<std::pair<toml::source_location, std::pair<std::string, std::string>>> found;
  if (!collect_texts(value, "", found)) return std::nullopt;
  // toml11's tables forget the order of the file.
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first.line(), a.first.column()) < std::pair(b.first.line(), b.first.column());
  });
  TextTable table;
  for (auto& [place, entry] : found) table.push_back(std::move(entry));
  return Value(std::move(table));
}

// The value as the schema knows it; nullopt for what no option takes (dates, mixed lists).
std::optional<Value> to_value(const toml::value& value, Kind kind) {
  if (value.is_table()) return kind == Kind::kTable ? to_table(value) : std::nullopt;
  if (value.is_boolean()) return Value(value.as_boolean());
  if (value.is_integer()) return Value(static_cast<int64_t>(value.as_integer()));
  if (value.is_floating()) return Value(value.as_floating());
  if (value.is_string()) return Value(value.as_string().str);
  if (!value.is_array()) return std::nullopt;
  const bool nested = kind == Kind::kListOfLists;
  std::vector<std::string> list;
  std::vector<std::vector<std::string>> lists;
  for (const toml::value& entry : value.as_array()) {
    if (nested) {
      const auto inner = entry.is_array() ? to_value(entry, Kind::kList) : std::nullopt;
      if (!inner) return std::nullopt;
      lists.push_back(std::get<std::vector<std::string>>(*inner));
    } else {
      if (!entry.is_string()) return std::nullopt;
      list.push_back(entry.as_string().str);
    }
  }
  return nested ? Value(std::move(lists)) : Value(std::move(list));
}

// A problem with its place, so that problems come in the order of the file.
struct Found {
  size_t line, column;
  std::string text;
};

class FileReader {
 public:
  FileReader(const std::string& name, ResolvedConfig& resolved) : name_(name), resolved_(resolved) {}

  void read_table(const toml::value& table, const std::string& prefix) {
    for (const auto& [key, value] : table.as_table()) {
      const std::string name = prefix.empty() ? key : prefix + '.' + key;
      const Option* option = key.find('.') == std::string::npos ? find_option(name) : nullptr;
      if (option != nullptr) {
        read_option(*option, value);
      } else if (!is_section(name)) {
        const bool table_like =
            value.is_table() || (value.is_array() && !value.as_array().empty() && value.at(0).is_table());
        if (table_like) {
          add(value, fmt::format("[{}]: there is no such section{}", shown(name),
                                 did_you_mean(nearest_section(name))));
        } else {
          add(value, fmt::format("{} = {}: there is no such key{}", shown(name), source(value),
                                 did_you_mean(nearest_key(name))));
        }
      } else if (value.is_table()) {
        read_table(value, name);
      } else {
        add(value, fmt::format("{} = {}: expected a table, written [{}]", shown(name), source(value), name));
      }
    }
  }

  void report(Problems& problems) {
    std::stable_sort(found_.begin(), found_.end(), [](const Found& a, const Found& b) {
      return std::pair(a.line, a.column) < std::pair(b.line, b.column);
    });
    for (const Found& found : found_) {
      problems.add(fmt::format("{}:{}:{}: {}", name_, found.line, found.column, found.text));
    }
  }

 private:
  // The value as it is written in the file.
  static std::string source(const toml::value& value) {
    if (value.is_table()) return "{...}";
    return shown(toml::detail::get_region(value)->str());
  }

  void add(const toml::value& value, std::string text) {
    // Finding a place reads the file from its start; further problems are only counted.
    if (found_.size() >= kMostProblems) {
      found_.push_back({std::numeric_limits<size_t>::max(), 0, std::move(text)});
      return;
    }
    const toml::source_location place = value.location();
    found_.push_back({place.line(), place.column(), std::move(text)});
  }

  void read_option(const Option& option, const toml::value& value) {
    const std::optional<Value> held = to_value(value, option.kind());
    if (!held || !fits(value, toml::detail::get_region(value)->str()) ||
        !assign(option, *held, resolved_.config)) {
      add(value, fmt::format("{} = {}: expected {}{}", option.name, source(value), expected(option),
                             choice_hint(option, held.value_or(Value()))));
      return;
    }
    const toml::source_location place = value.location();
    resolved_.origins[option.name] = fmt::format("{}:{}:{}", name_, place.line(), place.column());
  }

  const std::string& name_;
  ResolvedConfig& resolved_;
  std::vector<Found> found_;
};

void read_toml(const std::string& text, const std::string& name, ResolvedConfig& resolved,
               Problems& problems) {
  if (const auto unsafe = unsafe_toml(text)) return problems.add(fmt::format("{}:{}", name, *unsafe));
  toml::value root;
  try {
    std::istringstream stream(text);
    root = toml::parse(stream, name);
  } catch (const toml::exception& error) {
    // Its message is a title, a drawing of the place and hints: keep the title, without the parser's function
    // names.
    std::string title = error.what();
    title = title.substr(0, title.find('\n'));
    if (const size_t bracket = title.find("] "); bracket != std::string::npos) title.erase(0, bracket + 2);
    if (title.starts_with("toml::")) title.erase(0, std::min(title.size(), title.find(": ") + 2));
    return problems.add(fmt::format("{}:{}:{}: not valid TOML: {}", name, error.location().line(),
                                    error.location().column(), shown(title)));
  } catch (const std::exception& error) {
    return problems.add(fmt::format("{}:1:1: not valid TOML: {}", name, shown(error.what())));
  }
  FileReader reader(name, resolved);
  reader.read_table(root, "");
  reader.report(problems);
}

void apply(const Override& override, ResolvedConfig& resolved, Problems& problems) {
  const Option* option = find_option(override.name);
  if (option == nullptr) {
    problems.add(fmt::format("command line: --{}: there is no such option{}", shown(override.name),
                             did_you_mean(nearest_key(override.name))));
    return;
  }
  if (!override.has_value) {
    // Of texts there is no more to say: the quotes that expected() asks for are those of the file.
    const bool any_text = option->kind() == Kind::kText && option->form.empty() && option->choices.empty();
    problems.add(fmt::format("command line: --{}: needs a value{}", option->name,
                             any_text ? "" : ": " + expected(*option)));
    return;
  }
  const auto value = parse_text(*option, override.value);
  if (!value || !assign(*option, *value, resolved.config)) {
    problems.add(fmt::format("command line: --{} = {}: expected {}{}", option->name, shown(override.value),
                             expected(*option), choice_hint(*option, value.value_or(Value()))));
    return;
  }
  resolved.origins[option->name] = "command line";
}

// Former spellings become today's.
void modernise(ResolvedConfig& resolved) {
  JobConfig::Model& model = resolved.config.model;
  if (model.tokenizer_path) {
    if (resolved.origins.contains("model.hf_assets_path")) {
      resolved.warnings.push_back(
          "model.tokenizer_path is deprecated and ignored, because model.hf_assets_path is set.");
    } else {
      resolved.warnings.push_back(
          "model.tokenizer_path is deprecated: its value is used as model.hf_assets_path.");
      model.hf_assets_path = *model.tokenizer_path;
      resolved.origins["model.hf_assets_path"] = resolved.origin("model.tokenizer_path");
    }
    model.tokenizer_path.reset();
    resolved.origins.erase("model.tokenizer_path");
  }
  // The name in v0.2.2's llama3_405b preset, which v0.2.2 itself does not know.
  std::replace(model.converters.begin(), model.converters.end(), Converter::kFormerFloat8,
               Converter::kFloat8);
}

}  // namespace

std::string ResolvedConfig::origin(const std::string& key) const {
  const auto found = origins.find(key);
  return found == origins.end() ? "default" : found->second;
}

void Problems::add(const ResolvedConfig& resolved, const std::string& key, const std::string& text) {
  const Option* option = find_option(key);
  if (option == nullptr) throw_bug("a check names the configuration key '{}', which does not exist", key);
  add(fmt::format("{}: {} = {}: {}", resolved.origin(key), key,
                  shown(literal(read(*option, resolved.config))), text));
}

void Problems::throw_if_any(std::string_view what) const {
  if (lines_.empty()) return;
  const size_t shown_lines = std::min(lines_.size(), kMostProblems);
  std::string text = fmt::format("{}: {}", what, counted(lines_.size(), "problem"));
  for (size_t i = 0; i < shown_lines; ++i) text += "\n  " + lines_[i];
  if (shown_lines < lines_.size()) text += fmt::format("\n  and {} more", lines_.size() - shown_lines);
  throw_config("{}", text);
}

ResolvedConfig parse_config(const std::string& toml, const std::string& name,
                            const std::vector<Override>& overrides) {
  ResolvedConfig resolved;
  Problems problems;
  read_toml(toml, name, resolved, problems);
  for (const Override& override : overrides) apply(override, resolved, problems);
  problems.throw_if_any("The configuration cannot be read");
  modernise(resolved);
  return resolved;
}

ResolvedConfig load_config(const std::filesystem::path& file, const std::vector<Override>& overrides,
                           int ranks) {
  std::error_code ignored;
  const std::filesystem::file_type type = std::filesystem::status(file, ignored).type();
  if (ranks > 1 &&
      (type == std::filesystem::file_type::fifo || type == std::filesystem::file_type::character))
    throw_config(
        "The configuration cannot be read: {}: is a pipe or a terminal, which gives its content to one "
        "reader, "
        "and each of the {} ranks reads it: write it to a file first",
        printable(file), ranks);
  std::string text;
  try {
    text = read_file_or_pipe(file, kLargestToml);
  } catch (const Error& error) {
    throw_config("The configuration cannot be read: {}", error.what());
  }
  ResolvedConfig resolved = parse_config(text, file.string(), overrides);
  resolved.config.job.config_file = file.string();
  resolved.origins["job.config_file"] = "command line";
  return resolved;
}

}  // namespace hyperion
