#include "trainer/config/overrides.h"

#include <algorithm>

#include "base/shell.h"
#include "trainer/config/schema.h"

namespace hyperion::config {
namespace {

bool is_flag(const Option* option) {
  return option != nullptr && option->kind() == Kind::kBool;
}

// The option that "a.no_b" negates, when there is one.
const Option* negated_flag(const std::string& name) {
  const size_t key = name.rfind('.') + 1;
  if (name.compare(key, 3, "no_") != 0) return nullptr;
  const Option* option = find_option(name.substr(0, key) + name.substr(key + 3));
  return is_flag(option) ? option : nullptr;
}

// Returns whether `next`, the argument behind the option, is its value. An unknown option has one unless that
// looks like the configuration file.
bool is_value_of(const Option* option, const std::string& next) {
  if (is_flag(option)) return parse_text(*option, next).has_value();
  return !next.starts_with("--") && (option != nullptr || !next.ends_with(".toml"));
}

}  // namespace

std::string override_text(const std::string& key, const std::string& value) {
  return shell_command({"--" + key + "=" + value});
}

std::vector<Override> take_overrides(std::vector<std::string>& arguments) {
  std::vector<Override> overrides;
  std::vector<std::string> rest;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const size_t equals = argument.find('=');
    std::string name = argument.substr(0, equals);
    if (!name.starts_with("--") || name.find('.') == std::string::npos) {
      rest.push_back(argument);
      continue;
    }
    name.erase(0, 2);
    std::replace(name.begin(), name.end(), '-', '_');
    const Option* option = find_option(name);
    if (const Option* off = option == nullptr && equals == std::string::npos ? negated_flag(name) : nullptr) {
      overrides.push_back({off->name, "false"});
    } else if (equals != std::string::npos) {
      overrides.push_back({name, argument.substr(equals + 1)});
    } else if (i + 1 < arguments.size() && is_value_of(option, arguments[i + 1])) {
      overrides.push_back({name, arguments[++i]});
    } else if (is_flag(option)) {
      overrides.push_back({name, "true"});
    } else {
      overrides.push_back({name, "", false});
    }
  }
  arguments = std::move(rest);
  return overrides;
}

}  // namespace hyperion::config
