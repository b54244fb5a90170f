// Formats commands for messages and records, ready to be pasted.
#pragma once

#include <string>
#include <vector>

namespace hyperion {

// The arguments joined by blanks, each quoted if a POSIX shell needs it.
std::string shell_command(const std::vector<std::string>& arguments);

}  // namespace hyperion
