#include "trainer/config/command_line.h"

#include <catch2/catch.hpp>

#include "base/error.h"

using namespace hyperion;
using Catch::Contains;
using Action = CommandLine::Action;

namespace {

CommandLine parse(std::vector<std::string> arguments) {
  return parse_command_line(std::move(arguments), 100);
}

std::string refusal(std::vector<std::string> arguments) {
  try {
    parse(std::move(arguments));
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kUsage);
    return error.what();
  }
  FAIL("accepted");
  return "";
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
}

TEST_CASE("help and version end the program well") {
  CHECK(parse({"--version"}).action == Action::kVersion);
  CHECK(parse({}).action == Action::kShow);
  for (const char* subcommand : {"train", "config", "tokenize"}) {
    CHECK_THAT(parse({"--help"}).text, Contains(subcommand));
    CHECK_THAT(parse({subcommand, "--help"}).text, Contains(subcommand));
  }
  CHECK(parse({"train", "--help"}).action == Action::kShow);
  CHECK_THAT(parse({"train", "--help"}).text, Contains("--training.steps VALUE (integer, default 10000)"));
}

TEST_CASE("mistakes on the command line are usage errors") {
  CHECK_THAT(refusal({"train"}), Contains("hyperion train FILE.toml"));
  CHECK_THAT(refusal({"config", "--training.steps", "5"}), Contains("hyperion config FILE.toml"));
  CHECK_THAT(refusal({"--training.steps", "5"}), Contains("no configuration file"));
  CHECK_THAT(refusal({"train", "a.toml", "b.toml"}), Contains("b.toml"));
  CHECK_THAT(refusal({"train", "a.toml", "--job.config_file", "b.toml"}),
             Contains("two configuration files"));
  CHECK_THAT(refusal({"train", "a.toml", "--steps", "5"}), Contains("--steps"));
  CHECK_THAT(refusal({"fly"}), Contains("fly"));
  CHECK_THAT(refusal({"train", "--job.config_file"}), Contains("job.config_file"));
}
