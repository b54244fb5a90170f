// `hyperion generate` and `hyperion eval`: a checkpoint's model on this machine's first GPU, or its CPU.
#pragma once

#include <string>

#include "base/error.h"
#include "trainer/checkpointing/job_record.h"
#include "trainer/config/command_line.h"
#include "trainer/inference/engine.h"

namespace hyperion {

// What the commands need of a checkpoint, whatever its format.
struct ModelSource {
  ModelArgs args;
  LoadWeights load;          // the weights, or their average
  std::string tokenizer;     // path for resolve_input(): see ModelOrigin
  std::string tokenizer_by;  // what names it, for messages
  TokenizerRecord stored;    // the tokenizer that the weights were trained with
};

// Prints the continuation as it is made.
ExitCode generate_command(const CommandLine::Generate& options, const ModelSource& source);
// Prints a table or JSON.
ExitCode eval_command(const CommandLine::Eval& options, const ModelSource& source);

}  // namespace hyperion
