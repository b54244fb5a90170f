#include "trainer/config/load.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml.hpp>

#include "base/counted.h"
#include "base/error.h"
#include "base/files.h"
#include "base/nearest.h"
#include "base/printable.h"
#include "base/utf8.h"
#include "models/flavors/registry.h"
#include "trainer/config/input_path.h"
#include "trainer/config/schema.h"
#include "trainer/config/suggest.h"

namespace hyperion::config {
namespace {

constexpr size_t kMaxProblems = 50;   // more are only counted
constexpr size_t kMaxBrackets = 200;  // '[' and '{' of a file
constexpr size_t kMaxDots = 100;      // of a line
constexpr size_t kMaxCommas = 5000;   // of a file

// A text from outside in one line of a message.
std::string one_line(std::string_view text) {
  return printable(text, 60);
}

// "; flavours of llama3: debugmodel, 1B; of qwen3: debugmodel, 0.6B"
std::string all_flavors() {
  std::vector<std::string> families;
  for (const std::string& name : models::model_names())
    families.push_back(fmt::format("of {}: {}", name, fmt::join(models::model_flavors(name), ", ")));
  return fmt::format("; flavours {}", fmt::join(families, "; "));
}

// Returns "; did you mean dataloader?" for the first text that is not among the option's choices. A known but
// unavailable text is not treated as a misspelling.
std::string choice_hint(const Option& option, const Value& value) {
  std::vector<std::string> texts;
  if (const auto* text = std::get_if<std::string>(&value)) texts = {*text};
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) texts = *list;
  for (const std::string& text : texts) {
    if (std::ranges::count(option.choices, text) > 0) continue;
    if (std::ranges::count(option.type->choices, text) > 0) return "";
    if (const std::string why = unavailable_word(option.name, text); !why.empty())
      return "; " + why + (option.name == "model.name" ? all_flavors() : "");
    const std::string nearest = nearest_choice(option, text);
    return nearest.empty() && option.key() == "dataset"
               ? fmt::format("; files, whatever they are called, are named by {}_path", option.name)
               : did_you_mean(nearest);
  }
  return "";
}

// Returns the hint for an unknown key. torchtitan adds keys to [fault_tolerance] by a Python module.
std::string unknown_key_hint(const std::string& name) {
  if (name.starts_with("fault_tolerance.")) return "; " + kFaultTolerance.refusal;
  const std::string former = former_key(name);
  return former.empty() ? did_you_mean(nearest_key(name)) : "; " + former;
}

// Assigns the value. Returns "", or the problem of the value; nullopt is a value that no option takes.
template <typename Object>  // JobConfig, or an entry of a list of tables
std::string assign_or_explain(const Option& option, const std::optional<Value>& value, Object& object) {
  if (value && assign(option, *value, object)) return "";
  const auto* text = value ? std::get_if<std::string>(&*value) : nullptr;
  const std::string problem = text != nullptr && option.names_a_file() ? path_problem(*text) : "";
  if (!problem.empty()) return problem;
  return "expected " + expected(option) + choice_hint(option, value.value_or(Value()));
}

// Line and column. toml11's tables forget the order of the file.
using Position = std::pair<size_t, size_t>;

// toml11 finds a position by reading the file from its start. kMaxEntries (per table) and kMaxProblems bound
// the number of calls.
Position position_of(const toml::value& value) {
  const toml::source_location location = value.location();
  return {location.line(), location.column()};
}

constexpr size_t kMaxEntries = 1000;  // of a table

// Adds the texts of a table and of its nested tables. A nested key, a.b in TOML, becomes one name.
bool collect_texts(const toml::value& value, const std::string& prefix,
                   std::map<Position, TextTable::value_type>& found) {
  for (const auto& [key, entry] : value.as_table()) {
    const std::string name = prefix.empty() ? key : prefix + '.' + key;
    if (found.size() >= kMaxEntries) return false;
    if (entry.is_table()) {
      if (!collect_texts(entry, name, found)) return false;
    } else if (entry.is_string()) {
      found.emplace(position_of(entry), std::pair(name, entry.as_string().str));
    } else {
      return false;
    }
  }
  return true;
}

// Converts to the schema's Value; nullopt for types that no option takes (dates, mixed lists).
std::optional<Value> to_value(const toml::value& value, Kind kind) {
  if (value.is_table()) {
    std::map<Position, TextTable::value_type> texts;
    if (kind != Kind::kTable || !collect_texts(value, "", texts)) return std::nullopt;
    TextTable table;
    for (auto& [position, entry] : texts) table.push_back(std::move(entry));
    return Value(std::move(table));
  }
  if (value.is_boolean()) return Value(value.as_boolean());
  if (value.is_integer()) return Value(static_cast<int64_t>(value.as_integer()));
  if (value.is_floating()) return Value(value.as_floating());
  if (value.is_string()) return Value(value.as_string().str);
  if (!value.is_array()) return std::nullopt;
  if (kind == Kind::kPairs) {
    BatchRamp pairs;
    for (const toml::value& pair : value.as_array()) {
      const auto is_number = [](const toml::value& number) { return number.is_integer(); };
      if (!pair.is_array() || pair.size() != 2 || !std::ranges::all_of(pair.as_array(), is_number))
        return std::nullopt;
      pairs.emplace_back(pair.at(0).as_integer(), pair.at(1).as_integer());
    }
    return Value(std::move(pairs));
  }
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

// Returns whether toml11 may have replaced a number that does not fit by the largest one.
bool may_be_clamped(const toml::value& value) {
  using Integers = std::numeric_limits<int64_t>;
  if (value.is_integer())
    return value.as_integer() == Integers::max() || value.as_integer() == Integers::min();
  return value.is_floating() && std::abs(value.as_floating()) == std::numeric_limits<double>::max();
}

class FileReader {
 public:
  FileReader(const std::string& name, ResolvedConfig& resolved) : name_(name), resolved_(resolved) {}

  void read_table(const toml::value& table, const std::string& prefix) {
    for (const auto& [key, value] : table.as_table()) {
      const std::string name = prefix.empty() ? key : prefix + '.' + key;
      const Option* option = key.find('.') == std::string::npos ? find_option(name) : nullptr;
      const bool holds_tables =
          value.is_table() || (value.is_array() && !value.as_array().empty() && value.at(0).is_table());
      if (option != nullptr) {
        read_option(*option, value);
      } else if (is_section(name) && value.is_table()) {
        read_table(value, name);
      } else if (is_section(name)) {
        add_problem(value, fmt::format("{} = {}: expected a table, written [{}]", one_line(name),
                                       source_text(value), name));
      } else if (holds_tables) {
        const std::string former = former_section(name);
        add_problem(value, fmt::format("[{}]: there is no such section{}", one_line(name),
                                       former.empty() ? did_you_mean(nearest_section(name)) : "; " + former));
      } else {
        add_problem(value, fmt::format("{} = {}: there is no such key{}", one_line(name), source_text(value),
                                       unknown_key_hint(name)));
      }
    }
  }

  // Reports the problems in the order of the file.
  void report_problems(Problems& problems) const {
    for (const auto& [position, text] : problems_)
      problems.add(fmt::format("{}:{}:{}: {}", name_, position.first, position.second, text));
  }

 private:
  // The value as it is written in the file.
  static std::string source_text(const toml::value& value) {
    return value.is_table() ? "{...}" : one_line(toml::detail::get_region(value)->str());
  }

  void add_problem(const toml::value& value, std::string text) {
    const bool counted_only = problems_.size() >= kMaxProblems;
    problems_.emplace(counted_only ? Position(std::numeric_limits<size_t>::max(), 0) : position_of(value),
                      std::move(text));
  }

  void read_option(const Option& option, const toml::value& value) {
    if (option.kind() == Kind::kSources)
      read_tables<DataSource>(option, value);
    else if (option.kind() == Kind::kGroups)
      read_tables<ParameterGroup>(option, value);
    else
      read_member(option, value, option.name, resolved_.config);
  }

  // `name` is the option's in messages and origins.
  template <typename Object>
  void read_member(const Option& option, const toml::value& value, const std::string& name, Object& object) {
    std::optional<Value> held = to_value(value, option.kind());
    if (may_be_clamped(value) && (option.kind() == Kind::kInteger || option.kind() == Kind::kNumber))
      held = parse_text(option, toml::detail::get_region(value)->str());
    if (const std::string wrong = assign_or_explain(option, held, object); !wrong.empty())
      return add_problem(value, fmt::format("{} = {}: {}", name, source_text(value), wrong));
    add_origin(name, value);
  }

  void add_origin(const std::string& name, const toml::value& value) {
    const Position position = position_of(value);
    resolved_.origins[name] = fmt::format("{}:{}:{}", name_, position.first, position.second);
  }

  template <typename Table>
  void read_tables(const Option& option, const toml::value& value) {
    const auto is_table = [](const toml::value& entry) { return entry.is_table(); };
    if (!value.is_array() || !std::ranges::all_of(value.as_array(), is_table))
      return add_problem(
          value, fmt::format("{} = {}: expected {}", option.name, source_text(value), expected(option)));
    std::vector<Table> tables;
    for (const toml::value& entry : value.as_array()) {
      const std::string place = fmt::format("{}[{}]", option.name, tables.size());
      Table& table = tables.emplace_back();
      for (const auto& [key, member] : entry.as_table()) read_table_key(option, key, member, place, table);
      for (const Option& key : option.table->options)
        if (!key.need.empty() && !entry.contains(std::string(key.key())))
          add_problem(entry, fmt::format("{}: has no {}, {}", place, key.key(), key.need));
      add_origin(place, entry);
    }
    if (!tables.empty()) add_origin(option.name, value.as_array().front());
    assign(option, Value(std::move(tables)), resolved_.config);
  }

  template <typename Table>
  void read_table_key(const Option& list, const std::string& key, const toml::value& value,
                      const std::string& place, Table& table) {
    const std::vector<Option>& options = list.table->options;
    const auto option = std::ranges::find(options, key, &Option::key);
    const std::string name = fmt::format("{}.{}", place, one_line(key));
    if (option != options.end()) return read_member(*option, value, name, table);
    std::vector<std::string> keys;
    for (const Option& known : options) keys.emplace_back(known.key());
    add_problem(value, fmt::format("{} = {}: there is no such key{}", name, source_text(value),
                                   did_you_mean(nearest_name(key, keys))));
  }

  const std::string& name_;
  ResolvedConfig& resolved_;
  std::multimap<Position, std::string> problems_;
};

void read_toml(const std::string& text, const std::string& name, ResolvedConfig& resolved,
               Problems& problems) {
  if (const auto unsafe = toml_guard_problem(text)) return problems.add(fmt::format("{}:{}", name, *unsafe));
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
                                    error.location().column(), one_line(title)));
  } catch (const std::exception& error) {
    return problems.add(fmt::format("{}:1:1: not valid TOML: {}", name, one_line(error.what())));
  }
  FileReader reader(name, resolved);
  reader.read_table(root, "");
  reader.report_problems(problems);
}

// Returns the list of tables that `name` is, or has as a key ("training.sources.weight"); null for others.
const Option* list_of_tables(const std::string& name) {
  for (const Option& option : all_options())
    if (option.table != nullptr && (name == option.name || name.starts_with(option.name + ".")))
      return &option;
  return nullptr;
}

void apply_override(const Override& override, ResolvedConfig& resolved, Problems& problems) {
  if (const Option* list = list_of_tables(override.name))
    return problems.add(
        fmt::format("command line: --{}: lists of tables are set in the file alone, as [[{}]]{}",
                    one_line(override.name), list->name,
                    list->kind() == Kind::kSources
                        ? "; to train on one data set, name it in the file by training.dataset_path"
                        : ""));
  const Option* option = find_option(override.name);
  if (option == nullptr)
    return problems.add(fmt::format("command line: --{}: there is no such option{}", one_line(override.name),
                                    unknown_key_hint(override.name)));
  if (!override.has_value) {
    // A free text needs no expected(), which asks for the quotes of the file.
    const bool any_text = option->kind() == Kind::kText && option->form.empty() && option->choices.empty();
    return problems.add(fmt::format("command line: --{}: needs a value{}", option->name,
                                    any_text ? "" : ": " + expected(*option)));
  }
  const std::string wrong = assign_or_explain(*option, parse_text(*option, override.value), resolved.config);
  if (!wrong.empty())
    return problems.add(
        fmt::format("command line: --{} = {}: {}", option->name, one_line(override.value), wrong));
  resolved.origins[option->name] = "command line";
}

// Moves the values of deprecated keys and texts to those that replace them.
void replace_deprecated(ResolvedConfig& resolved) {
  JobConfig::Model& model = resolved.config.model;
  if (model.tokenizer_path) {
    const bool ignored = resolved.origins.contains("model.hf_assets_path");
    resolved.warnings.push_back(
        ignored ? "model.tokenizer_path is deprecated and ignored, because model.hf_assets_path is set."
                : "model.tokenizer_path is deprecated: its value is used as model.hf_assets_path.");
    if (!ignored) {
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

bool is_name(const std::string& text) {
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) == 0 &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

std::string environment_value(const std::string& name, const char* remedy) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0')
    throw_config("the environment variable {} is {}: {}", name, value != nullptr ? "empty" : "not set",
                 remedy);
  return value;
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
                  one_line(toml_text(read(*option, resolved.config))), text));
}

void Problems::throw_if_any(std::string_view what) const {
  if (lines_.empty()) return;
  const size_t printed = std::min(lines_.size(), kMaxProblems);
  std::string text = fmt::format("{}: {}", what, counted(lines_.size(), "problem"));
  for (size_t i = 0; i < printed; ++i) text += "\n  " + lines_[i];
  if (printed < lines_.size()) text += fmt::format("\n  and {} more", lines_.size() - printed);
  throw_config("{}", text);
}

std::optional<std::string> toml_guard_problem(std::string_view text) {
  if (text.size() > kMaxTomlBytes)
    return fmt::format("1:1: the file has {} bytes, at most {} are read", text.size(), kMaxTomlBytes);
  size_t line = 1, line_start = 0, brackets = 0, dots = 0, commas = 0;
  for (size_t i = 0; i < text.size();) {
    const int length = utf8_sequence(text.substr(i));
    const char c = text[i];
    const char* wrong = nullptr;
    if (length < 0) wrong = "the file is not UTF-8 here";
    if (c == '\0') wrong = "the file holds a NUL byte here";
    if ((c == '[' || c == '{') && ++brackets > kMaxBrackets)
      wrong = "the file has more than 200 opening brackets";
    if (c == '.' && ++dots > kMaxDots) wrong = "the line has more than 100 dots";
    if (c == ',' && ++commas > kMaxCommas) wrong = "the file has more than 5000 commas";
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

ResolvedConfig parse_config(const std::string& toml, const std::string& name,
                            const std::vector<Override>& overrides) {
  ResolvedConfig resolved;
  Problems problems;
  read_toml(toml, name, resolved, problems);
  for (const Override& override : overrides) apply_override(override, resolved, problems);
  problems.throw_if_any("The configuration cannot be read");
  replace_deprecated(resolved);
  return resolved;
}

ResolvedConfig load_config(const std::filesystem::path& named, const std::vector<Override>& overrides,
                           int ranks) {
  const std::filesystem::path file = config_file(named, install_root());
  std::error_code ignored;
  const std::filesystem::file_type type = std::filesystem::status(file, ignored).type();
  if (ranks > 1 &&
      (type == std::filesystem::file_type::fifo || type == std::filesystem::file_type::character))
    throw_config(
        "The configuration cannot be read: {}: is a pipe or a terminal, which gives its content to one "
        "reader, and each of the {} ranks reads it: write it to a file first",
        printable(file), ranks);
  std::string text;
  try {
    text = read_file_or_pipe(file, kMaxTomlBytes);
  } catch (const Error& error) {
    throw_config("The configuration cannot be read: {}", error.what());
  }
  ResolvedConfig resolved = parse_config(text, file.string(), overrides);
  resolved.config.job.config_file = file.string();
  resolved.origins["job.config_file"] = "command line";
  return resolved;
}

std::string expand_variables(const std::string& text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    if (text.compare(at, 2, "%j") == 0) {
      result += environment_value("SLURM_JOB_ID",
                                  "%j is the number of a SLURM job, and this is none; write it out");
      at += 2;
    } else if (text.compare(at, 2, "${") == 0) {
      const size_t end = text.find('}', at);
      const std::string name = end == std::string::npos ? "" : text.substr(at + 2, end - at - 2);
      if (!is_name(name)) throw_config("'{}': expected ${{NAME}}", printable(text.substr(at)));
      result += environment_value(name, "set it, or write the value instead");
      at = end + 1;
    } else {
      result += text[at++];
    }
  }
  return result;
}

void expand_dump_folder(ResolvedConfig& resolved) {
  std::string& folder = resolved.config.job.dump_folder;
  try {
    folder = expand_variables(folder);
    if (const std::string problem = path_problem(folder); !problem.empty()) throw_config("{}", problem);
  } catch (const Error& error) {
    throw_config("{}: job.dump_folder = \"{}\": {}", resolved.origin("job.dump_folder"),
                 printable(std::filesystem::path(folder)), error.what());
  }
}

}  // namespace hyperion::config
