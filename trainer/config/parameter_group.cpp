#include "trainer/config/parameter_group.h"

#include <algorithm>

#include <fmt/format.h>
#include <fnmatch.h>

namespace hyperion::config {

std::string name_of(const ParameterGroups& groups, size_t i) {
  return groups.at(i).name.value_or(fmt::format("group{}", i));
}

bool matches(const std::string& pattern, const std::string& fqn) {
  return fnmatch(pattern.c_str(), fqn.c_str(), FNM_NOESCAPE) == 0;
}

std::optional<size_t> group_of(const ParameterGroups& groups, const std::string& fqn) {
  const auto found = std::ranges::find_if(groups, [&](const ParameterGroup& group) {
    return std::ranges::any_of(group.match,
                               [&](const std::string& pattern) { return matches(pattern, fqn); });
  });
  return found == groups.end() ? std::nullopt : std::optional(static_cast<size_t>(found - groups.begin()));
}

}  // namespace hyperion::config
