// `hyperion generate` and `hyperion eval`: a checkpoint's model on this machine's first GPU, or its CPU.
#pragma once

#include "base/error.h"
#include "trainer/commands/command_line.h"
#include "trainer/commands/model_source.h"

namespace hyperion::trainer {

// Prints the continuation while it is generated.
ExitCode generate_command(const CommandLine::Generate& options, const ModelSource& source);
// Prints a table or JSON.
ExitCode eval_command(const CommandLine::Eval& options, const ModelSource& source);

}  // namespace hyperion::trainer
