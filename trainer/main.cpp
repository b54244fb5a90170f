// The program: reads the command line, runs one subcommand, turns failures into exit codes.
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "base/durable.h"
#include "base/error.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/standard_streams.h"
#include "base/terminal.h"
#include "parallel/environment.h"
#include "trainer/check_command.h"
#include "trainer/ckpt_command.h"
#include "trainer/config/command_line.h"
#include "trainer/config/load.h"
#include "trainer/config/print.h"
#include "trainer/config/validate.h"
#include "trainer/data/tokenize_command.h"
#include "trainer/data_setup.h"
#include "trainer/hf_model.h"
#include "trainer/model_source.h"
#include "trainer/options.h"
#include "trainer/report/report_command.h"
#include "trainer/trainer.h"
#include "trainer/version.h"

// The program's malloc is jemalloc, which reads this: a step's tensors take a tenth less processor time than
// with glibc's. By default blocks of 8 MiB and more go back to the system at once, and what lies free soon; a
// step wants the same memory again (3 to 8 % of its processor time went into giving it back and forth).
extern "C" const char* malloc_conf;
const char* malloc_conf = "oversize_threshold:0,dirty_decay_ms:-1";

namespace hyperion {
namespace {

ExitCode train(const CommandLine& line, const std::vector<std::string>& command) {
  keep_standard_streams();
  const int rank = read_environment().rank;
  init_logging(!rank_prints(rank));
  arm_faults_from_environment(line.allow_faults, rank);
  ignore_file_size_signal();
  ResolvedConfig resolved = load_config(line.config_file, line.overrides);
  resolve_hf_model(resolved, install_root());
  if (resolved.config.metrics.disable_color_printing) disable_terminal_escapes();
  log_info("Starting job: {}", resolved.config.job.description);
  for (const std::string& warning : resolved.warnings) log_warning("{}", warning);
  const std::vector<std::string> idle = keys_without_effect(resolved);
  if (!idle.empty()) log_info("without effect here: {}", fmt::join(idle, ", "));
  if (resolved.config.job.print_config) log_info("Running with configuration: {}", to_json(resolved.config));
  Trainer trainer(resolved, command);
  if (line.dump_state_dict) {
    fmt::print("{}", trainer.state_table());
    return ExitCode::kOk;
  }
  return trainer.run();
}

ExitCode show_config(const CommandLine& line) {
  ResolvedConfig resolved = load_config(line.config_file, line.overrides);
  resolve_hf_model(resolved, install_root());
  RunFacts facts;
  facts.model = model_facts(model_args(resolved.config.model));
  validate(resolved, facts);
  fmt::print("{}", to_toml(resolved));
  return ExitCode::kOk;
}

ExitCode run(const std::vector<std::string>& command) {
  const CommandLine line = parse_command_line({command.begin() + 1, command.end()}, terminal_width());
  if (line.action != CommandLine::Action::kTrain)  // which knows its rank
    init_logging(/*quiet=*/false, LogStream::kStderr);
  switch (line.action) {
    case CommandLine::Action::kShow:
      fmt::print("{}", line.text);
      return ExitCode::kOk;
    case CommandLine::Action::kVersion:
      fmt::print("{}", version_text());
      return ExitCode::kOk;
    case CommandLine::Action::kTrain:
      return train(line, command);
    case CommandLine::Action::kCheck:
      return check_command(line);
    case CommandLine::Action::kConfig:
      return show_config(line);
    case CommandLine::Action::kTokenize:
      return tokenize_command(line.tokenize.out,
                              resolve_input(line.tokenize.tokenizer, install_root()).string(),
                              line.tokenize.inputs);
    case CommandLine::Action::kGenerate:
      return generate_command(line.generate, model_source(line.generate));
    case CommandLine::Action::kEval:
      return eval_command(line.eval, model_source(line.eval));
    case CommandLine::Action::kCkpt:
      return ckpt_command(line.ckpt);
    case CommandLine::Action::kReport:
      return report_command({line.report.folders, line.report.output});
  }
  throw_bug("unknown action");
}

int report(ExitCode code, const std::string& message) {
  std::fflush(stdout);
  const char* name = terminal_escapes(STDERR_FILENO) ? "\033[31mhyperion:\033[39m " : "hyperion: ";
  std::fputs((name + message + "\n").c_str(), stderr);  // fmt::print would throw where nobody reads it
  return static_cast<int>(code);
}

}  // namespace
}  // namespace hyperion

int main(int argc, char** argv) {
  using hyperion::ExitCode;
  try {
    return static_cast<int>(hyperion::run({argv, argv + argc}));
  } catch (const hyperion::Error& error) {
    return hyperion::report(error.code(), error.what());
  } catch (const c10::Error& error) {
    return hyperion::report(ExitCode::kBug, std::string("internal error in libtorch: ") + error.what());
  } catch (const std::exception& error) {
    return hyperion::report(ExitCode::kBug, std::string("internal error: ") + error.what());
  }
}
