#include "trainer/config/print.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <type_traits>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/hash.h"
#include "trainer/config/schema.h"

namespace hyperion::config {

std::string to_toml(const ResolvedConfig& resolved, const models::ModelOverrides& dimensions) {
  JobConfig of_model;
  of_model.model.args = dimensions;
  const std::string flavor = resolved.config.model.name + " " + resolved.config.model.flavor;
  std::string text;
  for (const Section& section : schema()) {
    text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section.name);
    for (const Option& option : section.options) {
      const Value value = read(option, resolved.config);
      const auto is_unset = [](const Value& of) { return std::holds_alternative<std::monostate>(of); };
      std::string setting = fmt::format("{} = {}", option.key(), toml_text(value)),
                  origin = resolved.origin(option.name);
      if (is_unset(value)) {
        const bool is_dimension = option.section() == "model.args";
        const Value own = is_dimension ? read(option, of_model) : Value();
        setting = is_unset(own) ? fmt::format("# {} is not set", option.key())
                                : fmt::format("# {} = {}", option.key(), toml_text(own));
        if (!is_unset(own)) origin = flavor;
      }
      text += fmt::format("{:<48}  # {}\n", setting, origin);
    }
  }
  return text;
}

namespace {

// Unset keys are null.
template <typename Table>
nlohmann::ordered_json json_of(const std::vector<Table>& tables) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Table& table : tables) {
    nlohmann::ordered_json entries;
    for_each_key(table, [&](const char* key, const auto& member) {
      using Set = std::decay_t<decltype(member)>;
      if constexpr (std::is_same_v<Set, std::optional<OptimizerName>>)
        entries[key] = member ? nlohmann::ordered_json(text_of(*member)) : nlohmann::ordered_json();
      else if constexpr (requires { member.has_value(); })
        entries[key] = member ? nlohmann::ordered_json(*member) : nlohmann::ordered_json();
      else
        entries[key] = member;
    });
    list.push_back(std::move(entries));
  }
  return list;
}

}  // namespace

std::string to_json(const JobConfig& config) {
  using Json = nlohmann::ordered_json;
  Json tree;
  for (const Option& option : all_options()) {
    std::string path = "/" + option.name;
    std::replace(path.begin(), path.end(), '.', '/');
    tree[Json::json_pointer(path)] = std::visit(
        [](const auto& held) -> Json {
          using T = std::decay_t<decltype(held)>;
          if constexpr (std::is_same_v<T, std::monostate>)
            return nullptr;
          else if constexpr (std::is_same_v<T, TextTable>)
            return Json::object_t(held.begin(), held.end());
          else if constexpr (std::is_same_v<T, DataSources> || std::is_same_v<T, ParameterGroups>)
            return json_of(held);
          else if constexpr (std::is_same_v<T, double>)  // JSON has no infinite numbers
            return std::isfinite(held) ? Json(held) : Json(toml_text(Value(held)));
          else
            return held;
        },
        read(option, config));
  }
  return tree.dump(2, ' ', false, Json::error_handler_t::replace);
}

TextTable config_entries(const JobConfig& config) {
  TextTable entries;
  for (const Option& option : all_options())
    entries.emplace_back(option.name, toml_text(read(option, config)));
  return entries;
}

uint64_t config_hash(const TextTable& entries) {
  uint64_t hash = entries.size();
  for (const auto& [key, text] : entries) hash = hash_text(text, hash_text(key, hash));
  return hash;
}

std::string config_comparison(const TextTable& stored, const TextTable& now) {
  if (stored == now)
    return fmt::format("the configuration is the checkpoint's (hash {:016x})", config_hash(now));
  std::map<std::string, std::pair<std::string, std::string>> values;
  for (const auto& [key, text] : stored) values[key] = {text, "(no such key)"};
  for (const auto& [key, text] : now) values.try_emplace(key, "(new key)", "").first->second.second = text;
  std::vector<std::string> changes;
  for (const auto& [key, value] : values)
    if (value.first != value.second)
      changes.push_back(fmt::format("{}: {} -> {}", key, value.first, value.second));
  return fmt::format("the configuration differs from the checkpoint's in {}: {}",
                     counted(changes.size(), "key"), fmt::join(changes, ", "));
}

std::string model_options(const JobConfig::Model& saved, const JobConfig::Model& now) {
  // Only keys of the model's dimensions count, not its tokenizer and converters.
  const std::set<std::string> others = {"model.hf_assets_path", "model.tokenizer_path", "model.converters",
                                        "model.print_after_conversion"};
  JobConfig there, here;
  there.model = saved;
  here.model = now;
  std::vector<std::string> options;
  for (const Option& option : all_options()) {
    if (!option.name.starts_with("model.") || others.contains(option.name)) continue;
    const Value value = read(option, there);
    if (value != read(option, here)) options.push_back(override_text(option.name, command_line_text(value)));
  }
  return fmt::format("{}", fmt::join(options, " "));
}

}  // namespace hyperion::config
