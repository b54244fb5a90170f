// Makes outside text (file names, documents, keys, the environment) safe for messages: it must not steer a
// terminal.
#pragma once

#include <concepts>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace hyperion {

// The text with control bytes escaped ("\\x1b"), except those in `kept`.
std::string escape_control_bytes(std::string_view text, std::string_view kept = {});

// One line of at most about `limit` bytes; "..." ends a truncated text.
std::string printable(std::string_view text, size_t limit = 120);

// A path is never truncated.
template <std::same_as<std::filesystem::path> Path>
std::string printable(const Path& path) {
  return escape_control_bytes(path.native());
}

}  // namespace hyperion
