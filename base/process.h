// The host and environment of this process.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

#include <unistd.h>

namespace hyperion {

inline std::string host_name() {
  char name[256] = "";
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown host";
}

inline std::optional<std::string> environment_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace hyperion
