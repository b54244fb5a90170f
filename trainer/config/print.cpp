#include "trainer/config/print.h"

#include <algorithm>
#include <type_traits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "trainer/config/schema.h"

namespace hyperion::config {

std::string to_toml(const ResolvedConfig& resolved) {
  std::string text;
  for (const Section& section : schema()) {
    text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section.name);
    for (const Option& option : section.options) {
      const Value value = read(option, resolved.config);
      const std::string setting = std::holds_alternative<std::monostate>(value)
                                      ? fmt::format("# {} is not set", option.key())
                                      : fmt::format("{} = {}", option.key(), toml_text(value));
      text += fmt::format("{:<48}  # {}\n", setting, resolved.origin(option.name));
    }
  }
  return text;
}

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
          else
            return held;
        },
        read(option, config));
  }
  return tree.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace hyperion::config
