#include "trainer/config/reference.h"

#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include "trainer/config/schema.h"

namespace hyperion::config {
namespace {

const char* const kIntroduction = R"(# Configuration

<!-- Written by `hyperion config --reference` from trainer/config/options.def. Do not edit. -->

A job is described by a TOML file with the tables, keys and defaults of torchtitan v0.2.2. Every key can be set on the
command line too: `--training.steps 100`, `--training.steps=100`, `--metrics.enable_tensorboard`,
`--metrics.no_enable_jsonl`. There `-` and `_` are alike, lists are `a,b` (lists of lists `a,b;c`), and `None` unsets an
optional key. The command line wins over the file, the file over the default.

`hyperion config FILE.toml [overrides]` prints the resolved configuration and where each value came from.

A key belongs to the feature that its column "when" names. While that feature is off, the key is read, checked against its
range and kept. Switching on a feature that is not available is an error that names it. Keys marked "no effect here" only
tune Python; those that a job sets are logged once.

`HYPERION_DEVICE` = `auto`, `cpu` or `cuda` in the environment chooses the device; it is not a key.
)";

std::string default_text(const Option& option) {
  const Value value = read(option, JobConfig());
  return std::holds_alternative<std::monostate>(value) ? "not set" : toml_text(value);
}

// The words of `text` in lines of `width` columns, each behind `indent` blanks.
std::string wrap_words(const std::string& text, size_t indent, size_t width) {
  std::string out, line;
  std::istringstream words(text);
  const auto flush = [&] {
    if (!line.empty()) out += std::string(indent, ' ') + line + '\n';
    line.clear();
  };
  for (std::string word; words >> word;) {
    if (!line.empty() && indent + line.size() + 1 + word.size() > width) flush();
    line += (line.empty() ? "" : " ") + word;
  }
  flush();
  return out;
}

// The option's meaning, and what it accepts unless any value of its type will do.
std::string meaning_and_values(const Option& option) {
  const bool limited = !option.choices.empty() || option.minimum || option.maximum || option.special ||
                       !option.form.empty() || option.path;
  return limited ? fmt::format("{} Expects {}.", option.meaning, expected(option)) : option.meaning;
}

}  // namespace

std::string options_help(int width) {
  const auto columns = static_cast<size_t>(std::clamp(width, 40, 160));
  std::string text;
  for (const Section& section : schema()) {
    text += fmt::format("\n[{}] {}\n", section.name, section.meaning);
    for (const Option& option : section.options) {
      const bool flag = option.kind() == Kind::kBool;
      text += wrap_words(fmt::format("--{}{} ({}, default {})", option.name, flag ? "" : " VALUE",
                                     type_name(option), default_text(option)),
                         2, columns);
      std::string meaning = meaning_and_values(option);
      if (status_text(option) != "works") meaning += fmt::format(" ({})", status_text(option));
      text += wrap_words(meaning, 6, columns);
    }
  }
  return text;
}

namespace {

std::string table_head() {
  return "| key | type | default | meaning | when | status |\n|---|---|---|---|---|---|\n";
}

std::string table_row(const Option& option, const std::string& default_value) {
  std::string meaning = meaning_and_values(option);
  if (!option.in_torchtitan) meaning += " *Hyperion's own key.*";
  const std::string when =
      option.feature == nullptr || option.feature->key == option.name ? "" : option.feature->condition;
  return fmt::format("| `{}` | {} | `{}` | {} | {} | {} |\n", option.key(), type_name(option), default_value,
                     meaning, when, status_text(option));
}

// The default of a key of one table of a list.
std::string default_in_table(const Option& key, const TableKeys& table) {
  const Value value = key.type->read(static_cast<const std::byte*>(table.defaults) + key.offset);
  return std::holds_alternative<std::monostate>(value) || !key.need.empty() ? "not set" : toml_text(value);
}

}  // namespace

std::string configuration_reference() {
  std::string text = kIntroduction;
  for (const Section& section : schema()) {
    text += fmt::format("\n## [{}]\n\n{}\n\n{}", section.name, section.meaning, table_head());
    for (const Option& option : section.options) text += table_row(option, default_text(option));
    for (const Option& option : section.options) {
      if (option.table == nullptr) continue;
      text += fmt::format("\n### [[{}]]\n\nThe keys of each table, in the file alone.\n\n{}", option.name,
                          table_head());
      for (const Option& key : option.table->options)
        text += table_row(key, default_in_table(key, *option.table));
    }
  }
  text += "\n## Not available\n\n| key | refused when | because |\n|---|---|---|\n";
  for (const Feature* feature : features()) {
    if (feature->refusal.empty()) continue;
    text += fmt::format("| `{}` | {} | {} |\n", feature->key, feature->condition, feature->refusal);
  }
  return text;
}

}  // namespace hyperion::config
