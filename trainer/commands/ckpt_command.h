// `hyperion ckpt ...`: from the command line to checkpoint/tools, with what only the trainer knows of models.
#pragma once

#include "base/error.h"
#include "trainer/commands/command_line.h"

namespace hyperion::trainer {

ExitCode ckpt_command(const CommandLine::Ckpt& options);

}  // namespace hyperion::trainer
