// One table of [[optimizer.groups]]: parameters whose update has settings of its own.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/choices.h"

namespace hyperion::config {

struct ParameterGroup {
#define GROUP_KEY(type, key, value, ...) type key = value;
#include "trainer/config/groups.def"
  bool operator==(const ParameterGroup&) const = default;
};
using ParameterGroups = std::vector<ParameterGroup>;

// Calls f(key, member) for each key of a table.
template <typename F>
void for_each_key(const ParameterGroup& group, F&& f) {
#define GROUP_KEY(type, key, ...) f(#key, group.key);
#include "trainer/config/groups.def"
}

// Returns the name of group `i` in metrics and the log.
std::string name_of(const ParameterGroups& groups, size_t i);

// Returns whether a pattern matches the name of a parameter: * stands for any text, ? for any letter and
// [ab] for one of its letters.
bool matches(const std::string& pattern, const std::string& fqn);

// Returns the group of a parameter, the first that matches its name; nullopt if none does.
std::optional<size_t> group_of(const ParameterGroups& groups, const std::string& fqn);

}  // namespace hyperion::config
