// `hyperion check`: what a job checks before it touches a device, on a login node. It leaves no files
// behind.
#pragma once

#include "base/error.h"
#include "trainer/commands/command_line.h"

namespace hyperion::trainer {

// Prints a table of what was checked, and what a start would do. Throws the first failure, which is what the
// job would end with, with all that were found in its text.
ExitCode check_command(const CommandLine& line);

}  // namespace hyperion::trainer
