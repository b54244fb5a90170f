// One run of the program, from its command line to its exit code.
#pragma once

#include <string>
#include <vector>

namespace hyperion::app {

// Runs the subcommand that `command` names (command[0] is the program) and reports a failure, also one of a
// library's thread or of a library that calls exit(). Returns the exit code. Does not return, but ends the
// process with that code, where destructors could wait forever or need memory that there is not.
int run_program(const std::vector<std::string>& command);

}  // namespace hyperion::app
