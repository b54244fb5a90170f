#include "trainer/config/print.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "trainer/config/schema.h"

namespace hyperion {

std::string to_toml(const ResolvedConfig& resolved) {
  std::string text;
  for (const Section& section : schema()) {
    text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section.name);
    for (const Option& option : section.options) {
      const Value value = read(option, resolved.config);
      const std::string setting = std::holds_alternative<std::monostate>(value)
                                      ? fmt::format("# {} is not set", option.key())
                                      : fmt::format("{} = {}", option.key(), literal(value));
      text += fmt::format("{:<48}  # {}\n", setting, resolved.origin(option.name));
    }
  }
  return text;
}

std::string to_json(const JobConfig& config) {
  nlohmann::ordered_json tree;
  for (const Section& section : schema()) {
    for (const Option& option : section.options) {
      std::string path = "/" + option.name;
      std::replace(path.begin(), path.end(), '.', '/');
      tree[nlohmann::ordered_json::json_pointer(path)] =
          nlohmann::ordered_json::parse(json_literal(read(option, config)));
    }
  }
  return tree.dump(2);
}

}  // namespace hyperion
