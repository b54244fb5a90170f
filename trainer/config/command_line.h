// The command line of the program: which subcommand, with what. Nothing is opened or run here.
#pragma once

#include <string>
#include <vector>

#include "trainer/config/overrides.h"

namespace hyperion {

struct CommandLine {
  enum class Action {
    kShow,      // print `text` and end with exit code 0 (--help, config --reference)
    kVersion,   // print the versions and end
    kTrain,     // train by config_file and overrides
    kConfig,    // print the configuration that config_file and overrides resolve to
    kTokenize,  // write token shards by `tokenize`
  };
  struct Tokenize {
    std::string out;                  // folder to write
    std::string tokenizer;            // folder with tokenizer files
    std::vector<std::string> inputs;  // files, folders or globs of JSON lines
  };

  Action action = Action::kShow;
  std::string text;
  std::string config_file;
  std::vector<Override> overrides;
  Tokenize tokenize;
};

// `arguments` without the program's name; `width`: columns that help is wrapped to. Accepted forms:
//   train FILE [overrides]     train --job.config_file FILE [overrides]     --job.config_file FILE
//   [overrides] config FILE [overrides]    config --reference tokenize --out DIR [--tokenizer DIR] INPUT...
//   --help, --version, SUBCOMMAND --help
// Throws Error(kUsage) for anything else. Names and values of overrides are checked by load_config().
CommandLine parse_command_line(std::vector<std::string> arguments, int width);

// Columns of the terminal on stdout: by the terminal, else COLUMNS, else 100.
int terminal_width();

}  // namespace hyperion
