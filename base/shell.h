// Commands as messages and records show them, ready to be pasted.
#pragma once

#include <string>
#include <vector>

namespace hyperion {

// The arguments joined with blanks, each quoted where a POSIX shell needs it.
std::string shell_command(const std::vector<std::string>& arguments);

}  // namespace hyperion
