// `hyperion tokenize --out DIR [--tokenizer DIR] [--text-field NAME] INPUT...`: text corpora to one token
// shard (token_shards.h), so that training reads tokens instead of text.
#pragma once

#include "base/error.h"
#include "trainer/commands/command_line.h"

namespace hyperion::trainer {

// `out` must be missing or empty; `tokenizer` is a path for resolve_input(); `inputs`, as find_corpus takes
// them, are read in this order, files of one input by name. Logs what was written. Throws Error(kUsage,
// kBadData); then nothing is left at `out`.
ExitCode tokenize_command(const CommandLine::Tokenize& options);

}  // namespace hyperion::trainer
