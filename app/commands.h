// Declares the subcommands of `hyperion` except train and config. All throw Error(kUsage) for wrong arguments
// and Error(kBadData) for bad files.
#pragma once

#include "app/command_line.h"
#include "base/error.h"

namespace hyperion::app {

struct ModelSource;  // model_source.h

// Runs a job's checks before it touches a device; works on a login node and leaves no files. Prints a table
// of the checks and the plan of a start. Throws the first failure, with which the job would end; its text
// lists all failures.
ExitCode check_command(const CommandLine& line);

// Prints what a job of config_file and overrides would read: its first sequences, or one of any number,
// decoded and with the place of each document.
ExitCode data_command(const CommandLine& line);

// Converts text and token files to one token shard (token_shards.h), so that training reads tokens instead of
// text, or to Megatron's pair of files. `out` must be missing or empty. `tokenizer` is a path for
// resolve_input(). `inputs` are as for find_corpus() and are read in order; files of one input are read by
// name. Logs the written files. After an error nothing is at `out`; OUT.partial holds finished files, behind
// which the same command goes on.
ExitCode tokenize_command(const CommandLine::Tokenize& options);

// Both run a checkpoint's model on this machine's first GPU, or on its CPU. generate prints the continuation
// as it is generated; eval prints a table or JSON.
ExitCode generate_command(const CommandLine::Generate& options, const ModelSource& source);
ExitCode eval_command(const CommandLine::Eval& options, const ModelSource& source);

// Runs a tool of checkpoint/tools, with the trainer's knowledge of models.
ExitCode ckpt_command(const CommandLine::Ckpt& options);

// Writes metrics of runs as one HTML page. Throws Error(kUsage) for a folder without metrics and for more
// than kMaxRuns runs, Error(kBadData) if metrics cannot be read or have no row, and Error(kSaveFailed) if the
// page cannot be written.
ExitCode report_command(const CommandLine::Report& options);

// Predicts memory and speed of a job on the meshes that a number of GPUs allows, and prints the best. Needs
// no GPU, tokenizer or data. Throws Error(kUsage) if no mesh can run the job or none has the memory.
ExitCode plan_command(const CommandLine& line);

// Shows a run of which only the folder is known in the terminal, until q or a signal; `once`: prints it.
// Throws Error(kUsage) for a folder without metrics if `once`, and for a stdout that is no terminal if not;
// Error(kBadData) if metrics cannot be read or, with `once`, have no row.
ExitCode monitor_command(const CommandLine::Monitor& options);

}  // namespace hyperion::app
