#include "trainer/config/list_checks.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

namespace hyperion::config {

bool ListChecks::is_name(const std::string& name) {
  return !name.empty() && name.size() <= 100 && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '.' || c == '_';
  });
}

void ListChecks::refuse(size_t index, const char* key, const std::string& value, const std::string& text) {
  const std::string table = fmt::format("{}[{}]", list_, index), name = table + "." + key;
  problems_.add(fmt::format("{}: {} = {}: {}",
                            resolved_.origin(resolved_.origins.contains(name) ? name : table), name, value,
                            text));
}

}  // namespace hyperion::config
