// The subcommands of `hyperion` but train and config. All of them throw Error(kUsage) for what the user gave
// them and Error(kBadData) for what a file holds.
#pragma once

#include "app/command_line.h"
#include "base/error.h"

namespace hyperion::app {

struct ModelSource;  // model_source.h

// What a job checks before it touches a device, on a login node; leaves no files behind. Prints a table of
// what was checked, and what a start would do. Throws the first failure, which is what the job would end
// with, with all that were found in its text.
ExitCode check_command(const CommandLine& line);

// Text corpora to one token shard (token_shards.h), so that training reads tokens instead of text. `out` must
// be missing or empty; `tokenizer` is a path for resolve_input(); `inputs`, as find_corpus takes them, are
// read in this order, files of one input by name. Logs what was written. After an error nothing is left at
// `out`.
ExitCode tokenize_command(const CommandLine::Tokenize& options);

// A checkpoint's model on this machine's first GPU, or its CPU. generate prints the continuation while it is
// generated, eval a table or JSON.
ExitCode generate_command(const CommandLine::Generate& options, const ModelSource& source);
ExitCode eval_command(const CommandLine::Eval& options, const ModelSource& source);

// From the command line to checkpoint/tools, with what only the trainer knows of models.
ExitCode ckpt_command(const CommandLine::Ckpt& options);

// Metrics of runs as one HTML page. A folder without metrics and more than kMaxRuns are errors of usage,
// metrics that cannot be read or hold no row are bad data; Error(kSaveFailed) when the page cannot be
// written.
ExitCode report_command(const CommandLine::Report& options);

}  // namespace hyperion::app
