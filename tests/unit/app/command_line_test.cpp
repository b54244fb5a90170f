#include "app/command_line.h"

#include <cstdlib>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/support/error_of.h"

namespace hyperion::app {

using Catch::Contains;
using Action = CommandLine::Action;

namespace {

CommandLine parse(std::vector<std::string> arguments) {
  return parse_command_line(std::move(arguments), 100);
}

std::string refusal(std::vector<std::string> arguments) {
  return error_of(ExitCode::kUsage, [&] { parse(std::move(arguments)); });
}

}  // namespace

TEST_CASE("train takes its file in three ways") {
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"train", "f.toml", "--training.steps", "5"},
           {"train", "--training.steps=5", "f.toml"},
           {"train", "--job.config_file", "f.toml", "--training.steps", "5"},
           {"--job.config_file", "f.toml", "--training.steps", "5"},
           {"--job.config-file=f.toml", "--training.steps=5"},
       }) {
    const CommandLine line = parse(arguments);
    CHECK(line.action == Action::kTrain);
    CHECK(line.config_file == "f.toml");
    REQUIRE(line.overrides.size() == 1);
    CHECK(line.overrides[0].name == "training.steps");
    CHECK(line.overrides[0].value == "5");
  }
}

TEST_CASE("config takes the same arguments as train") {
  const CommandLine line = parse({"config", "f.toml", "--compile.enable"});
  CHECK(line.action == Action::kConfig);
  CHECK(line.config_file == "f.toml");
  CHECK(line.overrides.size() == 1);
  CHECK(parse({"config", "--reference"}).text.starts_with("# Configuration\n"));
}

TEST_CASE("check takes the same arguments as train and a number of ranks") {
  const CommandLine line = parse({"check", "f.toml", "--training.steps=5", "--ranks", "64"});
  CHECK(line.action == Action::kCheck);
  CHECK(line.config_file == "f.toml");
  CHECK(line.overrides.size() == 1);
  CHECK(line.ranks == 64);
  CHECK(parse({"check", "--job.config_file=f.toml"}).ranks == 0);
  CHECK(line.gpu_memory == 0);
  CHECK(parse({"check", "f.toml", "--gpu-memory=79.2"}).gpu_memory == 79.2);
  CHECK_THAT(refusal({"check"}), Contains("hyperion check FILE.toml"));
  CHECK_THAT(refusal({"check", "f.toml", "--steps=5"}), Contains("did you mean --training.steps?"));
  for (const char* bad : {"--ranks=0", "--ranks=-1", "--ranks=x", "--ranks=1000001", "--gpu-memory=0",
                          "--gpu-memory=nan", "--gpu-memory=80GB"})
    CHECK_FALSE(refusal({"check", "f.toml", bad}).empty());
}

TEST_CASE("every unknown option has its own suggestion, in the order of the command line") {
  CHECK(refusal({"train", "f.toml", "--steps", "5", "--zzzz", "x", "--lr=3"}) ==
        "command line: no such option: --steps (did you mean --training.steps?), --zzzz, --lr (did you mean "
        "--optimizer.lr?) (see hyperion --help)");
  CHECK(refusal({"train", "f.toml", "g.toml"}) ==
        "command line: nothing more is expected, but there is \"g.toml\" (see hyperion --help)");
  CHECK(
      refusal({"train", "f.toml", "--steps=5", "g.toml"}) ==
      "command line: no such option: --steps (did you mean --training.steps?); nothing more is expected, but "
      "there is \"g.toml\" (see hyperion --help)");
  CHECK(refusal({"generate", "c", "--promt", "x"}) ==
        "command line: no such option: --promt (did you mean --prompt?) (see hyperion --help)");
}

TEST_CASE("tokenize takes a folder a tokenizer and inputs") {
  const CommandLine line = parse({"tokenize", "--out", "shards", "--tokenizer=tok", "a.jsonl", "b.jsonl.gz"});
  CHECK(line.action == Action::kTokenize);
  CHECK(line.tokenize.out == "shards");
  CHECK(line.tokenize.tokenizer == "tok");
  CHECK(line.tokenize.inputs == std::vector<std::string>{"a.jsonl", "b.jsonl.gz"});
  CHECK(parse({"tokenize", "--out", "o", "a"}).tokenize.tokenizer == "./tests/assets/tokenizer");
  CHECK_THAT(refusal({"tokenize", "a.jsonl"}), Contains("--out"));
  CHECK_THAT(refusal({"tokenize", "--out", "o"}), Contains("INPUT"));
  CHECK_THAT(refusal({"tokenize", "--out", "o", "a", "--training.steps", "5"}), Contains("training.steps"));
  CHECK_THAT(refusal({"tokenize", "--out", "o", "a", "--job.config_file", "f.toml"}),
             Contains("--job.config_file: tokenize takes no configuration keys"));
}

TEST_CASE("train may print its state and let failpoints act") {
  const CommandLine line = parse({"train", "f.toml", "--dump-state-dict"});
  CHECK(line.action == Action::kTrain);
  CHECK(line.dump_state_dict);
  CHECK_FALSE(line.allow_faults);
  CHECK(parse({"train", "--allow-faults", "f.toml"}).allow_faults);
  CHECK(parse({"--job.config_file", "f.toml", "--allow-faults"}).allow_faults);
}

TEST_CASE("the last of a repeated option of a tool counts as a remedy is pasted behind the command") {
  const auto line = parse({"generate", "c", "--prompt", "x", "--tokenizer", "a", "--tokenizer", "b"});
  CHECK(line.generate.tokenizer == "b");
}

TEST_CASE("generate takes a checkpoint a prompt and how to draw") {
  const CommandLine line =
      parse({"generate", "out/step-10", "--prompt", "It was. --a.b", "--max-tokens", "5", "--temperature=0.8",
             "--top-k", "40", "--seed", "18446744073709551615", "--ema", "--dtype", "bfloat16"});
  CHECK(line.action == Action::kGenerate);
  CHECK(line.generate.checkpoint == "out/step-10");
  CHECK(line.generate.prompt == "It was. --a.b");
  CHECK(line.generate.sampling.max_tokens == 5);
  CHECK(line.generate.sampling.temperature == 0.8);
  CHECK(line.generate.sampling.top_k == 40);
  CHECK(line.generate.sampling.seed == 18446744073709551615u);
  CHECK(line.generate.ema);
  CHECK(line.generate.dtype == checkpoint::Dtype::kBFloat16);
  CHECK_THAT(refusal({"generate", "c"}), Contains("--prompt"));
  CHECK_THAT(refusal({"generate", "--prompt", "x"}), Contains("CKPT"));
  for (const char* bad : {"--max-tokens=0", "--temperature=-1", "--temperature=nan", "--top-k=-1",
                          "--dtype=int8", "--seed=-1", "--max-tokens=99999999999999999999"}) {
    CAPTURE(bad);
    CHECK_FALSE(refusal({"generate", "c", "--prompt", "x", bad}).empty());
  }
}

TEST_CASE("eval takes a checkpoint and data") {
  const CommandLine line =
      parse({"eval", "c", "--data", "d.jsonl", "--seq-len", "64", "--batch-size=2", "--json"});
  CHECK(line.action == Action::kEval);
  CHECK(line.eval.data == "d.jsonl");
  CHECK(line.eval.seq_len == 64);
  CHECK(line.eval.batch_size == 2);
  CHECK(line.eval.max_batches == 0);
  CHECK(line.eval.json);
  CHECK_THAT(refusal({"eval", "c"}), Contains("--data"));
}

TEST_CASE("monitor takes one folder, and how often it is looked at") {
  const CommandLine line = parse_command_line({"monitor", "a", "--interval=0.5"}, 100);
  CHECK(line.action == CommandLine::Action::kMonitor);
  CHECK(line.monitor.folder == "a");
  CHECK(line.monitor.interval == 0.5);
  CHECK_FALSE(line.monitor.once);
  CHECK(parse_command_line({"monitor", "a", "--once"}, 100).monitor.once);
  CHECK_THAT(refusal({"monitor", "a", "--interval=0"}), Contains("at least 0.1"));
  CHECK_THAT(refusal({"monitor", "a", "b"}), Contains("nothing more is expected"));
}

TEST_CASE("report takes folders of runs and the file to write") {
  const CommandLine line = parse_command_line({"report", "a", "b", "-o", "c.html"}, 100);
  CHECK(line.action == CommandLine::Action::kReport);
  CHECK(line.report.folders == std::vector<std::string>{"a", "b"});
  CHECK(line.report.output == "c.html");
  CHECK(parse_command_line({"report", "a"}, 100).report.output == "report.html");
  CHECK(parse_command_line({"report", "a"}, 100).report.watch == 0);
  CHECK(parse_command_line({"report", "--watch", "a"}, 100).report.watch == 10);
  CHECK(parse_command_line({"report", "a", "--watch=2.5"}, 100).report.watch == 2.5);
  const auto named =
      parse_command_line({"report", "--name=a=x", "--name", "b=y", "a", "b", "--baseline", "x"}, 100).report;
  CHECK(named.names == std::vector<std::string>{"a=x", "b=y"});
  CHECK(named.folders == std::vector<std::string>{"a", "b"});
  CHECK(named.baseline == "x");
  CHECK_FALSE(named.ratio);
}

TEST_CASE("ckpt knows six tools") {
  using Tool = CommandLine::Ckpt::Tool;
  const auto ckpt = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "ckpt");
    const CommandLine line = parse(std::move(arguments));
    CHECK(line.action == Action::kCkpt);
    return line.ckpt;
  };
  CHECK(ckpt({"ls", "d"}).tool == Tool::kLs);
  CHECK(ckpt({"ls", "d", "--json"}).ls.json);
  CHECK(ckpt({"verify", "d", "--full"}).tool == Tool::kVerify);
  CHECK_FALSE(ckpt({"verify", "--full", "d"}).verify.quick);
  CHECK_FALSE(ckpt({"verify", "d"}).verify.quick);
  CHECK(ckpt({"verify", "--quick", "d"}).verify.quick);
  CHECK_THAT(refusal({"ckpt", "verify", "d", "--quick", "--full"}),
             Contains("--quick") && Contains("--full"));
  CHECK(ckpt({"digest", "d", "--prefix", "layers.0."}).digest.only.prefix == "layers.0.");
  CHECK(ckpt({"diff", "a", "b"}).tool == Tool::kDiff);
  CHECK(ckpt({"diff", "a.toml", "b"}).diff.a == "a.toml");
  CHECK(ckpt({"diff", "a", "b"}).diff.b == "b");
  const CommandLine::Ckpt convert =
      ckpt({"convert", "s", "d", "--to", "safetensors", "--dtype=float16", "--ema"});
  CHECK(convert.tool == Tool::kConvert);
  CHECK(convert.convert.source == "s");
  CHECK(convert.convert.destination == "d");
  CHECK(convert.convert.format == checkpoint::WeightFormat::kSafetensors);
  CHECK(convert.convert.dtype == checkpoint::Dtype::kFloat16);
  CHECK(convert.convert.ema);
  CHECK(ckpt({"prune", "d", "--keep", "2", "--dry-run"}).prune.keep == 2);
  CHECK(ckpt({"prune", "d", "--keep", "2", "--dry-run"}).prune.dry_run);
  const std::string tools = "ls, verify, digest, diff, convert and prune";
  CHECK(refusal({"ckpt"}) == "command line: ckpt: name a tool: " + tools);
  CHECK(refusal({"ckpt", "nonsense", "d"}) == "command line: no tool \"nonsense\"; there are " + tools);
  CHECK(refusal({"ckpt", "verfy", "d"}) ==
        "command line: no tool \"verfy\"; there are " + tools + "; did you mean verify?");
  CHECK_THAT(refusal({"ckpt", "prune", "d"}), Contains("--keep"));
  CHECK_FALSE(refusal({"ckpt", "prune", "d", "--keep", "0"}).empty());
  CHECK_FALSE(refusal({"ckpt", "convert", "s", "d", "--to", "pickle"}).empty());
  CHECK_THAT(refusal({"ckpt", "ls", "d", "--training.steps", "5"}), Contains("training.steps"));
  CHECK_THAT(parse({"ckpt", "--help"}).text, Contains("verify"));
  CHECK_THAT(parse({"ckpt", "prune", "--help"}).text, Contains("--dry-run"));
}

TEST_CASE("help and version end the program well") {
  CHECK(parse({"--version"}).action == Action::kVersion);
  CHECK(parse({}).action == Action::kShow);
  for (const char* subcommand : {"train", "config", "check", "tokenize", "generate", "eval", "ckpt"}) {
    CHECK_THAT(parse({"--help"}).text, Contains(subcommand));
    CHECK_THAT(parse({subcommand, "--help"}).text, Contains(subcommand));
  }
  CHECK(parse({"train", "--help"}).action == Action::kShow);
  CHECK_THAT(parse({"train", "--help"}).text, Contains("--training.steps VALUE (integer, default 10000)"));
}

TEST_CASE("arguments that are dashes and signs alone are refused as unknown options") {
  for (const char* command : {"train", "check", "config", "generate", "ckpt"})
    for (const char* argument : {"--=", "---=x", "--=.", "---."}) {
      CAPTURE(command, argument);
      std::vector<std::string> arguments = {command};
      if (std::string(command) == "ckpt") arguments.push_back("ls");
      arguments.push_back(argument);
      CHECK_FALSE(refusal(arguments).empty());
    }
  CHECK(refusal({"---"}) == "command line: no such option: --- (see hyperion --help)");
  CHECK(refusal({"train", "a.toml", "--="}) == "command line: no such option: -- (see hyperion --help)");
  CHECK(parse({"train", "a.toml", "--."}).overrides.at(0).name == ".");  // refused with the configuration
}

TEST_CASE("a URL in the place of a path is refused with the remedy, by every command") {
  const std::string url = "s3://bucket/run";
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"train", url},
                                             {"train", "--job.config_file", url},
                                             {"config", url},
                                             {"check", url},
                                             {"tokenize", "--out", url, "a.jsonl"},
                                             {"tokenize", "--out", "a", "b.jsonl", url},
                                             {"tokenize", "--out", "a", "b.jsonl", "--tokenizer", url},
                                             {"generate", url, "--prompt", "x"},
                                             {"generate", "c", "--prompt", "x", "--config", url},
                                             {"generate", "c", "--prompt", "x", "--tokenizer", url},
                                             {"eval", "c", "--data", url},
                                             {"ckpt", "ls", url},
                                             {"ckpt", "verify", url},
                                             {"ckpt", "digest", url},
                                             {"ckpt", "diff", url, "b"},
                                             {"ckpt", "diff", "a", url},
                                             {"ckpt", "convert", url, "b", "--to", "dcp"},
                                             {"ckpt", "convert", "a", url, "--to", "dcp"},
                                             {"ckpt", "convert", "a", "b", "--to", "dcp", "--config", url},
                                             {"ckpt", "prune", url, "--keep", "1"},
                                             {"report", "a", url},
                                             {"report", "a", "-o", url},
                                             {"monitor", url}}) {
    CAPTURE(arguments);
    CHECK_THAT(refusal(arguments), Contains("is a URL") && Contains("mount what s3:// names"));
  }
  CHECK_THAT(refusal({"ckpt", "ls", "file:///data/run"}), Contains("leave out file://"));
  CHECK(parse({"generate", "c", "--prompt", "see https://a.b"}).generate.prompt == "see https://a.b");
  for (const char* path : {"runs/a:/b", "://a", "1a://b", "a b://c"})
    CHECK(parse({"ckpt", "ls", path}).ckpt.ls.path == path);
}

TEST_CASE("~ in a path is the home folder and that of another user is refused, by every command") {
  const std::string home = std::getenv("HOME") != nullptr ? std::getenv("HOME") : "";
  ::setenv("HOME", "/home/anna", 1);
  CHECK(parse({"train", "~/a.toml"}).config_file == "/home/anna/a.toml");
  CHECK(parse({"train", "--job.config_file=~/a.toml"}).config_file == "/home/anna/a.toml");
  CHECK(parse({"check", "~"}).config_file == "/home/anna");
  const CommandLine::Tokenize tokenize =
      parse({"tokenize", "--out=~/o", "--tokenizer", "~/t", "a", "~/b", "c~", "~/*.jsonl"}).tokenize;
  CHECK(tokenize.out == "/home/anna/o");
  CHECK(tokenize.tokenizer == "/home/anna/t");
  CHECK(tokenize.inputs == std::vector<std::string>{"a", "/home/anna/b", "c~", "/home/anna/*.jsonl"});
  CHECK(parse({"ckpt", "diff", "~/a", "./~"}).ckpt.diff.a == "/home/anna/a");
  CHECK(parse({"ckpt", "diff", "~/a", "./~"}).ckpt.diff.b == "./~");
  CHECK(parse({"report", "a", "-o", "~/r.html"}).report.output == "/home/anna/r.html");
  CHECK(parse({"generate", "c", "--prompt", "~/x"}).generate.prompt == "~/x");
  CHECK_THAT(refusal({"ckpt", "ls", "~anna/run"}), Contains("home folder of another user"));
  CHECK_THAT(refusal({"train", "--job.config_file", "~anna/a.toml"}),
             Contains("home folder of another user"));
  ::unsetenv("HOME");
  CHECK_THAT(refusal({"ckpt", "ls", "~/run"}), Contains("HOME is not set"));
  ::setenv("HOME", home.c_str(), 1);
}

TEST_CASE("mistakes on the command line are usage errors") {
  CHECK_THAT(refusal({"train"}), Contains("hyperion train FILE.toml"));
  CHECK_THAT(refusal({"config", "--training.steps", "5"}), Contains("hyperion config FILE.toml"));
  CHECK_THAT(refusal({"--training.steps", "5"}), Contains("no configuration file"));
  CHECK_THAT(refusal({"train", "a.toml", "b.toml"}), Contains("b.toml"));
  CHECK_THAT(refusal({"train", "a.toml", "--job.config_file", "b.toml"}),
             Contains("two configuration files"));
  CHECK_THAT(refusal({"train", "a.toml", "--steps", "5"}), Contains("did you mean --training.steps?"));
  CHECK_THAT(refusal({"train", "--batch-size=4", "a.toml"}),
             Contains("did you mean --training.local_batch_size?"));
  CHECK_THAT(refusal({"config", "a.toml", "--learning_rate", "1"}), Contains("did you mean --optimizer.lr?"));
  CHECK_THAT(refusal({"--job.config_file", "a.toml", "--lr=1"}), Contains("did you mean --optimizer.lr?"));
  CHECK_THAT(refusal({"train", "a.toml", "--dump-statedict"}), Contains("did you mean --dump-state-dict?"));
  CHECK_THAT(refusal({"generate", "c", "--prompt", "x", "--max-token=5"}),
             Contains("did you mean --max-tokens?"));
  CHECK_THAT(refusal({"ckpt", "prune", "d", "--keep", "1", "--dryrun"}), Contains("did you mean --dry-run?"));
  CHECK_THAT(refusal({"ckpt", "ls", "d", "--steps", "1"}), !Contains("did you mean"));
  CHECK_THAT(refusal({"fly"}), Contains("no subcommand \"fly\"; there are train, config,"));
  CHECK_THAT(refusal({"trian", "a.toml"}), Contains("did you mean train?"));
  CHECK_THAT(refusal({"a.toml"}), Contains("did you mean train a.toml?"));
  CHECK_THAT(refusal({"verify", "d"}), Contains("did you mean ckpt verify?"));
  CHECK_THAT(refusal({"train", "--job.config_file"}), Contains("job.config_file"));
}

}  // namespace hyperion::app
