#include "trainer/config/command_line.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include <CLI/CLI.hpp>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/error.h"
#include "trainer/config/job_config.h"
#include "trainer/config/reference.h"

namespace hyperion {
namespace {

const char* const kOverridesHelp = R"(
Overrides of configuration keys: --section.key VALUE or --section.key=VALUE; --section.key and --section.no_key
for true and false; "-" and "_" are alike; lists are a,b; None unsets an optional key.
`hyperion train --help` lists them all.
)";

// --job.config_file among the overrides names the file.
std::string take_config_file(std::vector<Override>& overrides) {
  std::string file;
  std::erase_if(overrides, [&](const Override& override) {
    if (override.name != "job.config_file") return false;
    if (override.value.empty())
      throw_config("command line: --job.config_file: expected the path of a TOML file");
    file = override.value;
    return true;
  });
  return file;
}

std::string chosen_file(const std::string& positional, const std::string& option) {
  if (!positional.empty() && !option.empty()) {
    throw_config("command line: two configuration files, {} and --job.config_file {}: name one", positional,
                 option);
  }
  return positional.empty() ? option : positional;
}

}  // namespace

CommandLine parse_command_line(std::vector<std::string> arguments, int width) {
  CommandLine result;
  result.overrides = take_overrides(arguments);
  const std::string option_file = take_config_file(result.overrides);

  CLI::App app("Hyperion trains Llama-style models by torchtitan v0.2.2 TOML files.", "hyperion");
  app.get_formatter()->column_width(34);
  app.footer(kOverridesHelp);
  bool version = false, reference = false;
  std::string file;
  app.add_flag("--version", version, "Print the versions of Hyperion and of what it is built with");

  CLI::App* train = app.add_subcommand("train", "Train by a TOML file");
  train->add_option("FILE", file, "The TOML file (or --job.config_file FILE)");
  train->footer("");

  CLI::App* config =
      app.add_subcommand("config", "Print the resolved configuration and where each value came from");
  config->add_option("FILE", file, "The TOML file");
  config->add_flag("--reference", reference, "Print docs/configuration.md instead");

  CLI::App* tokenize = app.add_subcommand("tokenize", "Write JSON lines as memory-mapped token shards");
  tokenize->add_option("--out", result.tokenize.out, "Folder to write")->required();
  tokenize->add_option("--tokenizer", result.tokenize.tokenizer, "Folder with the tokenizer's files")
      ->default_str(JobConfig::Model().hf_assets_path);
  tokenize
      ->add_option("INPUT", result.tokenize.inputs,
                   "Files, folders or globs of JSON lines (plain, .gz, .zst)")
      ->required();
  tokenize->footer("");
  app.require_subcommand(0, 1);

  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    result.text = app.help();  // of the subcommand, when there is one
    if (train->parsed()) result.text += "\nOverrides:\n" + options_help(width);
    return result;
  } catch (const CLI::ParseError& error) {
    throw_config("command line: {} (see hyperion --help)", error.what());
  }

  if (version) {
    result.action = CommandLine::Action::kVersion;
    return result;
  }
  if (tokenize->parsed()) {
    result.action = CommandLine::Action::kTokenize;
    if (result.tokenize.tokenizer.empty()) result.tokenize.tokenizer = JobConfig::Model().hf_assets_path;
    if (!result.overrides.empty()) {
      throw_config("command line: --{}: tokenize takes no configuration keys", result.overrides.front().name);
    }
    return result;
  }
  if (reference) {
    result.text = configuration_reference();
    return result;
  }
  result.config_file = chosen_file(file, option_file);
  if (result.config_file.empty()) {
    if (arguments.empty() && result.overrides.empty() && !train->parsed() && !config->parsed()) {
      result.text = app.help();  // `hyperion` alone
      return result;
    }
    throw_config("command line: no configuration file: write hyperion {} FILE.toml [overrides]",
                 config->parsed() ? "config" : "train");
  }
  result.action = config->parsed() ? CommandLine::Action::kConfig : CommandLine::Action::kTrain;
  return result;
}

int terminal_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  int columns = 100;
  if (const char* text = std::getenv("COLUMNS")) std::from_chars(text, text + std::strlen(text), columns);
  return columns > 0 ? columns : 100;
}

}  // namespace hyperion
