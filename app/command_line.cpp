#include "app/command_line.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/error.h"
#include "base/nearest.h"
#include "base/text.h"
#include "trainer/config/input_path.h"
#include "trainer/config/reference.h"
#include "trainer/config/suggest.h"

namespace hyperion::app {
namespace {

const char* const kOverridesHelp = R"(
Overrides of configuration keys: --section.key VALUE or --section.key=VALUE; --section.key and --section.no_key
for true and false; "-" and "_" are alike; lists are a,b; None unsets an optional key.
`hyperion train --help` lists them all.
)";

// The TOML file of a job: the plain argument, or --job.config_file, which is removed from the overrides.
std::string take_config_file(const std::string& argument, std::vector<config::Override>& overrides) {
  std::string option;
  std::erase_if(overrides, [&](const config::Override& override) {
    if (override.name != "job.config_file") return false;
    if (override.value.empty())
      throw_config("command line: --job.config_file: expected the path of a TOML file");
    if (const std::string problem = config::path_problem(override.value); !problem.empty())
      throw_config("command line: --job.config_file: {}", problem);
    option = config::expand_home(override.value);
    return true;
  });
  if (!argument.empty() && !option.empty())
    throw_config("command line: two configuration files, {} and --job.config_file {}: name one", argument,
                 option);
  return argument.empty() ? option : argument;
}

// An option or argument that is a path, or several.
template <typename Target>
CLI::Option* add_path(CLI::App& command, const char* name, Target& target, const char* meaning) {
  return command.add_option(name, target, meaning)
      ->transform(CLI::Validator(
          [](std::string& path) {
            const std::string problem = config::path_problem(path);
            if (problem.empty()) path = config::expand_home(path);
            return problem;
          },
          ""));
}

// CLI::Range lets NaN pass.
CLI::Validator at_least(double minimum) {
  return {[minimum](std::string& text) {
            double value = 0;
            return CLI::detail::lexical_cast(text, value) && value >= minimum && value <= 1.9e19
                       ? std::string()
                       : fmt::format("expected a number of at least {}", minimum);
          },
          ""};
}

// Makes the last value of a repeated option count, as for configuration keys, so that a user can paste a
// message's remedy behind the command.
void take_last_values(CLI::App& command) {
  for (CLI::Option* option : command.get_options())
    if (!option->get_positional() && option->get_items_expected_max() == 1) option->take_last();
  for (CLI::App* subcommand : command.get_subcommands({})) take_last_values(*subcommand);
}

// An option for an enumeration's texts; `texts`: those that it takes.
template <EnumWithTexts E, typename Target>
CLI::Option* add_choice(CLI::App& command, const char* name, Target& target, const char* meaning,
                        const std::vector<std::string>& texts = texts_of<E>()) {
  const auto set = [&target](const std::string& text) { target = choice_of<E>(text).value(); };
  return command.add_option_function<std::string>(name, set, meaning)->check(CLI::IsMember(texts));
}

void add_config(CLI::App& command, std::string& config) {
  add_path(command, "--config", config, "TOML file with the model, where the checkpoint names none");
}

void add_inference_options(CLI::App& command, CommandLine::Inference& inference) {
  add_path(command, "CKPT", inference.checkpoint, "Folder of a checkpoint (step-N) or of safetensors")
      ->required();
  add_config(command, inference.config);
  add_path(command, "--tokenizer", inference.tokenizer, "Folder with the tokenizer's files");
  add_choice<checkpoint::Dtype>(command, "--dtype", inference.dtype,
                                "Type of weights and arithmetic: float32 or bfloat16",
                                {"float32", "bfloat16"});
  command.add_flag("--ema", inference.ema, "Use the averaged weights");
  command.add_flag("--allow-other-tokenizer", inference.allow_other_tokenizer,
                   "Take a tokenizer that the weights were not trained with");
}

CLI::App* add_tokenize(CLI::App& app, CommandLine::Tokenize& tokenize) {
  CLI::App* command = app.add_subcommand("tokenize", "Write text or token files as token shards");
  add_path(*command, "--out", tokenize.out, "Folder to write; for megatron X of X.bin and X.idx")->required();
  add_path(*command, "--tokenizer", tokenize.tokenizer, "Folder with the tokenizer's files")
      ->capture_default_str();
  command->add_option("--text-field", tokenize.text_field, "Field of each line that holds the text (text)");
  command
      ->add_option("--format", tokenize.format, "shard (a token shard), or megatron (.bin and .idx) (shard)")
      ->check(CLI::IsMember({"shard", "megatron"}));
  add_path(*command, "INPUT", tokenize.inputs, "Files, folders or globs of text or token files")->required();
  return command;
}

CLI::App* add_generate(CLI::App& app, CommandLine::Generate& generate) {
  CLI::App* command = app.add_subcommand("generate", "Continue a text with a checkpoint's model");
  add_inference_options(*command, generate);
  inference::SamplingOptions& sampling = generate.sampling;
  command->add_option("--prompt", generate.prompt, "The text to continue")->required();
  command->add_option("--max-tokens", sampling.max_tokens, "Most new tokens (128)")->check(at_least(1));
  command->add_option("--temperature", sampling.temperature, "0: always the likeliest token (default)")
      ->check(at_least(0));
  command->add_option("--top-k", sampling.top_k, "Draw among the k likeliest; 0: among all (default)")
      ->check(at_least(0));
  command->add_option("--seed", sampling.seed, "Of the draws (0)")->check(at_least(0));
  return command;
}

CLI::App* add_eval(CLI::App& app, CommandLine::Eval& eval) {
  CLI::App* command = app.add_subcommand("eval", "Loss of a checkpoint's model on a data set");
  add_inference_options(*command, eval);
  add_path(*command, "--data", eval.data, "JSON lines or token shards, as training.dataset_path")->required();
  command->add_option("--text-field", eval.text_field, "Field of each line that holds the text (text)");
  command->add_option("--seq-len", eval.seq_len, "Tokens of one sequence (2048)")->check(at_least(1));
  command->add_option("--batch-size", eval.batch_size, "Sequences of one batch (8)")->check(at_least(1));
  command->add_option("--max-batches", eval.max_batches, "Batches to read; 0: all (default)")
      ->check(at_least(0));
  command->add_flag("--json", eval.json, "Print JSON instead of a table");
  return command;
}

CLI::App* add_ckpt(CLI::App& app, CommandLine::Ckpt& ckpt) {
  using Tool = CommandLine::Ckpt::Tool;
  CLI::App* group = app.add_subcommand("ckpt", "Tools for checkpoints");
  group->require_subcommand(1);
  const auto add = [&](const char* name, Tool tool, const char* meaning) {
    CLI::App* command = group->add_subcommand(name, meaning);
    command->callback([&ckpt, tool] { ckpt.tool = tool; });
    return command;
  };
  const auto add_json = [](CLI::App* command, bool& json) {
    command->add_flag("--json", json, "Print JSON instead of a table");
  };
  CLI::App* ls = add("ls", Tool::kLs, "List checkpoints or what one holds");
  add_path(*ls, "DIR", ckpt.ls.path, "A folder of checkpoints, or one")->required();
  add_json(ls, ckpt.ls.json);

  CLI::App* verify = add("verify", Tool::kVerify, "Check the files");
  add_path(*verify, "DIR", ckpt.verify.path, "A checkpoint, or a folder of them")->required();
  CLI::Option* quick = verify->add_flag("--quick", ckpt.verify.quick,
                                        "Compare sizes and ids alone, without reading the content");
  verify
      ->add_flag_callback(
          "--full", [] {}, "Read every byte, which is the default")
      ->excludes(quick);
  add_json(verify, ckpt.verify.json);

  CLI::App* digest = add("digest", Tool::kDigest, "Hash every tensor, whatever its shards");
  add_path(*digest, "DIR", ckpt.digest.path, "A checkpoint")->required();
  digest->add_option("--prefix", ckpt.digest.only.prefix, "Only names that begin with it");
  add_json(digest, ckpt.digest.json);

  CLI::App* diff = add("diff", Tool::kDiff, "Compare two checkpoints");
  add_path(*diff, "A", ckpt.diff.a, "A checkpoint, or a TOML file: the state it would have")->required();
  add_path(*diff, "B", ckpt.diff.b, "The same")->required();
  add_json(diff, ckpt.diff.json);

  CLI::App* convert = add("convert", Tool::kConvert, "Write it in another format");
  add_path(*convert, "SRC", ckpt.convert.source, "A checkpoint")->required();
  add_path(*convert, "DST", ckpt.convert.destination, "Folder to write")->required();
  add_choice<checkpoint::WeightFormat>(*convert, "--to", ckpt.convert.format, "dcp or safetensors")
      ->required();
  add_choice<checkpoint::Dtype>(*convert, "--dtype", ckpt.convert.dtype,
                                "float32, bfloat16 or float16; as they are unless set",
                                {"float32", "bfloat16", "float16"});
  add_config(*convert, ckpt.config);
  convert->add_flag("--ema", ckpt.convert.ema, "The averaged weights instead of the weights");

  CLI::App* prune = add("prune", Tool::kPrune, "Remove old checkpoints");
  add_path(*prune, "DIR", ckpt.prune.path, "A folder of checkpoints")->required();
  prune->add_option("--keep", ckpt.prune.keep, "Newest complete checkpoints that stay")
      ->required()
      ->check(at_least(1));
  prune->add_flag("--dry-run", ckpt.prune.dry_run, "Only print what would be removed");
  return group;
}

CLI::App* add_report(CLI::App& app, CommandLine::Report& report) {
  CLI::App* command = app.add_subcommand("report", "Plot the metrics of runs in one HTML page");
  add_path(*command, "DIR", report.folders, "Folders of runs (their job.dump_folder)")->required();
  add_path(*command, "-o,--output", report.output, "The HTML file to write (report.html)");
  command->add_option("--name", report.names, "DIR=NAME: call the run of DIR by NAME; may be repeated")
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--baseline", report.baseline, "Name or DIR of the run that others are compared with");
  command->add_flag("--ratio", report.ratio, "Compare by ratios to the baseline instead of differences");
  // Only --watch=SECONDS: the word after --watch is a DIR.
  const std::string watch = "Refresh the page until all runs have ended; =SECONDS apart (10)";
  command->add_flag("--watch{10}", watch)->check(at_least(0.5))->each([&report](const std::string& text) {
    CLI::detail::lexical_cast(text, report.watch);
  });
  return command;
}

CLI::App* add_monitor(CLI::App& app, CommandLine::Monitor& monitor) {
  CLI::App* command = app.add_subcommand("monitor", "Show a run in the terminal while it trains");
  add_path(*command, "DIR", monitor.folder, "Folder of the run (its job.dump_folder), or a rank_N in it")
      ->required();
  command->add_flag("--once", monitor.once, "Print the newest state as text and end");
  command->add_option("--interval", monitor.interval, "Seconds between refreshes (2)")->check(at_least(0.1));
  return command;
}

// Reads "15T", "300B" or "2e9".
std::string read_tokens(std::string& text) {
  const std::string_view units = "KMBT";
  double factor = 1;
  if (const size_t unit = text.empty() ? units.npos : units.find(text.back()); unit != units.npos) {
    factor = std::pow(1000.0, static_cast<double>(unit + 1));
    text.pop_back();
  }
  const std::optional<double> number = parse_number<double>(text);
  if (!number || !(*number > 0)) return "expected a number of tokens, such as 15T, 300B or 2e9";
  text = fmt::format("{}", *number * factor);
  return "";
}

CLI::App* add_plan(CLI::App& app, CommandLine::Plan& plan, std::string& file) {
  CLI::App* command = app.add_subcommand(
      "plan", "Predict memory and speed on the meshes that a number of GPUs allows, without a GPU or data");
  add_path(*command, "FILE", file, "The TOML file");
  const auto count = CLI::Range(int64_t{1}, int64_t{1'000'000});
  command->add_option("--gpus", plan.gpus, "GPUs of the job")->required()->check(count);
  command->add_option("--gpu", plan.gpu, "h100, h100-500w, h200, a100, b200 or FILE.json:NAME (h100)");
  command->add_option("--gpus-per-node", plan.gpus_per_node, "GPUs of a node (8)")->check(count);
  command->add_option("--network", plan.network, "Gb/s of a GPU between nodes (400)")->check(at_least(0.001));
  command->add_option("--seq-len", plan.seq_len, "Tokens of a sequence; the file's unless set")->check(count);
  command->add_option("--global-batch-size", plan.global_batch, "Sequences of a step; the file's unless set")
      ->check(count);
  command->add_option("--tokens", plan.tokens, "Tokens of the job, such as 15T, for days and GPU hours")
      ->transform(CLI::Validator(read_tokens, "TOKENS"));
  command->add_flag("--configured", plan.configured, "Predict the file's own settings, and search nothing");
  command->add_flag("--keep-mesh", plan.keep_mesh, "Keep the file's degrees, and search the other settings");
  command->add_option("--explain", plan.explain, "Print the plan of this number in full")->check(count);
  command->add_flag("--json", plan.json, "Print JSON");
  add_path(*command, "--html", plan.html, "Write a page with pictures of memory, time and speed by GPUs");
  add_path(*command, "--write", plan.write, "Write a TOML file with the plan (the first, or --explain's)");
  return command;
}

std::vector<std::string> names_of_commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

std::string list_of(std::vector<std::string> names) {
  const std::string last = names.back();
  names.pop_back();
  return fmt::format("{} and {}", fmt::join(names, ", "), last);
}

// CLI11 calls a word that is no subcommand unexpected and does not say what is expected.
void require_known_commands(const CLI::App& app, const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0].starts_with('-')) return;
  const std::vector<std::string> commands = names_of_commands(app);
  const std::vector<std::string> tools = names_of_commands(*app.get_subcommand("ckpt"));
  const std::string& name = arguments[0];
  if (std::ranges::count(commands, name) == 0) {
    const std::string meant = name.ends_with(".toml")               ? "train " + name
                              : std::ranges::count(tools, name) > 0 ? "ckpt " + name
                                                                    : nearest_name(name, commands);
    throw_config("command line: no subcommand \"{}\"; there are {}{}", name, list_of(commands),
                 did_you_mean(meant));
  }
  if (name != "ckpt" || (arguments.size() > 1 && arguments[1].starts_with('-'))) return;
  if (arguments.size() == 1) throw_config("command line: ckpt: name a tool: {}", list_of(tools));
  if (std::ranges::count(tools, arguments[1]) == 0)
    throw_config("command line: no tool \"{}\"; there are {}{}", arguments[1], list_of(tools),
                 did_you_mean(nearest_name(arguments[1], tools)));
}

// Returns "no such option: --steps (did you mean --training.steps?), --x": every unknown option with the
// nearest option of `command` or, if it takes keys, the nearest configuration key. A word after an unknown
// option is its value; other words are listed after the options. `extras` are in the command line's order.
std::string describe_extras(const CLI::App& command, const std::vector<std::string>& extras,
                            bool takes_keys) {
  std::vector<std::string> options;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) options.push_back(name);
  std::vector<std::string> unknown, words;
  bool follows_option = false;
  for (const std::string& extra : extras) {
    const bool option = extra.size() > 1 && extra.starts_with('-');
    if (option) {
      const std::string written = extra.substr(0, extra.find('='));
      std::string name = written.substr(std::min(written.find_first_not_of('-'), written.size()));
      std::string meant = nearest_name(name, options);
      std::replace(name.begin(), name.end(), '-', '_');
      if (meant.empty() && takes_keys) meant = config::nearest_key(name);
      unknown.push_back(meant.empty() ? written : fmt::format("{} (did you mean --{}?)", written, meant));
    } else if (!follows_option) {
      words.push_back(fmt::format("\"{}\"", extra));
    }
    follows_option = option && extra.find('=') == std::string::npos;
  }
  std::string text;
  if (!unknown.empty()) text = fmt::format("no such option: {}", fmt::join(unknown, ", "));
  if (!words.empty())
    text += fmt::format("{}nothing more is expected, but there is {}", text.empty() ? "" : "; ",
                        fmt::join(words, ", "));
  return text;
}

}  // namespace

CommandLine parse_command_line(std::vector<std::string> arguments, int width) {
  using Action = CommandLine::Action;
  CommandLine result;
  result.overrides = config::take_overrides(arguments);

  CLI::App app("Hyperion trains Llama-style models by torchtitan v0.2.2 TOML files.", "hyperion");
  app.get_formatter()->column_width(34);
  bool version = false, reference = false;
  std::string file;
  app.add_flag("--version", version, "Print the versions of Hyperion and of what it is built with");

  CLI::App* train = app.add_subcommand("train", "Train by a TOML file");
  add_path(*train, "FILE", file, "The TOML file (or --job.config_file FILE)");
  for (CLI::App* command : {&app, train}) {
    command->add_flag("--dump-state-dict", result.dump_state_dict,
                      "Print names, shapes and types of the training state and end");
    command->add_flag("--allow-faults", result.allow_faults, "Let failpoints act (tests)");
  }

  CLI::App* config =
      app.add_subcommand("config", "Print the resolved configuration and where each value came from");
  add_path(*config, "FILE", file, "The TOML file");
  config->add_flag("--reference", reference, "Print docs/configuration.md instead");

  CLI::App* check = app.add_subcommand(
      "check", "Check what a job does before it touches a device: on a login node, nothing is left behind");
  add_path(*check, "FILE", file, "The TOML file");
  check->add_option("--ranks", result.ranks, "Ranks of the job; those of the environment (or 1) unless set")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}));
  check
      ->add_option("--gpu-memory", result.gpu_memory,
                   "GB of memory of a rank's GPU, as it is sold; those of this host's GPU unless set")
      ->check(at_least(1));

  check->add_option("--gpu", result.plan.gpu, "The card of the predicted speed, as for plan (h100)");
  check->add_flag("--json", result.plan.json, "Print JSON instead of a table");

  CLI::App* plan = add_plan(app, result.plan, file);

  CLI::App* data =
      app.add_subcommand("data", "Show what a job reads: sequences as text, with their documents");
  add_path(*data, "FILE", file, "The TOML file");
  data->add_option("--sequence", result.data.sequence, "The sequence of this number, counted from 0")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000'000}));
  data->add_option("--sequences", result.data.sequences, "How many of the first sequences (2)")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}));
  data->add_flag("--full", result.data.full, "Show long documents without a gap");

  const std::pair<CLI::App*, Action> tools[] = {{add_tokenize(app, result.tokenize), Action::kTokenize},
                                                {add_generate(app, result.generate), Action::kGenerate},
                                                {add_eval(app, result.eval), Action::kEval},
                                                {add_ckpt(app, result.ckpt), Action::kCkpt},
                                                {add_report(app, result.report), Action::kReport},
                                                {add_monitor(app, result.monitor), Action::kMonitor}};
  app.require_subcommand(0, 1);
  for (CLI::App* command : {&app, config, check, data, plan}) command->footer(kOverridesHelp);
  take_last_values(app);
  require_known_commands(app, arguments);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    result.text = app.help();  // of the subcommand, when there is one
    if (train->parsed()) result.text += "\nOverrides:\n" + config::options_help(width);
    return result;
  } catch (const CLI::ParseError& error) {
    const CLI::App* command = &app;  // or the tool of a subcommand
    while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
    const bool takes_keys = command == &app || command == train || command == config || command == check ||
                            command == data || command == plan;
    const std::string extras = describe_extras(*command, app.remaining(/*recurse=*/true), takes_keys);
    throw_config("command line: {} (see hyperion --help)", extras.empty() ? error.what() : extras);
  }

  if (version) {
    result.action = Action::kVersion;
    return result;
  }
  for (const auto& [command, action] : tools) {
    if (!command->parsed()) continue;
    if (!result.overrides.empty())
      throw_config("command line: --{}: {} takes no configuration keys", result.overrides.front().name,
                   command->get_name());
    result.action = action;
    return result;
  }
  if (reference) result.text = config::configuration_reference();
  if (app.get_subcommands().empty() && result.overrides.empty()) result.text = app.help();
  if (!result.text.empty()) return result;
  result.config_file = take_config_file(file, result.overrides);
  const CLI::App* command = config->parsed()  ? config
                            : check->parsed() ? check
                            : data->parsed()  ? data
                            : plan->parsed()  ? plan
                                              : train;
  if (result.config_file.empty())
    throw_config("command line: no configuration file: write hyperion {} FILE.toml [overrides]",
                 command->get_name());
  result.action = command == config  ? Action::kConfig
                  : command == check ? Action::kCheck
                  : command == data  ? Action::kData
                  : command == plan  ? Action::kPlan
                                     : Action::kTrain;
  return result;
}

int terminal_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  int columns = 100;
  if (const char* text = std::getenv("COLUMNS")) std::from_chars(text, text + std::strlen(text), columns);
  return columns > 0 ? columns : 100;
}

}  // namespace hyperion::app
