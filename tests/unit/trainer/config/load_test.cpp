#include "trainer/config/load.h"

#include <random>

#include <catch2/catch.hpp>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"
#include "trainer/config/schema.h"

namespace hyperion::config {

using Catch::Contains;
using Catch::EndsWith;
using Catch::Equals;
namespace fs = std::filesystem;

namespace {

ResolvedConfig parse(const std::string& toml, const std::vector<Override>& overrides = {}) {
  return parse_config(toml, "job.toml", overrides);
}

// The message of the error that reading raises; fails the test when there is none.
std::string refusal(const std::string& toml, const std::vector<Override>& overrides = {}) {
  return error_of(ExitCode::kUsage, [&] { parse(toml, overrides); });
}

std::string repeated(const std::string& text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

}  // namespace

TEST_CASE("an empty file is all defaults") {
  const ResolvedConfig resolved = parse("");
  CHECK(resolved.config.training.steps == 10000);
  CHECK(resolved.origins.empty());
  CHECK(resolved.origin("training.steps") == "default");
}

TEST_CASE("values of every type arrive with their place") {
  const ResolvedConfig resolved = parse(R"(
[training]
steps = 10_000
max_norm = 2
dataset_path = "a/b"
[training.dataloader]
num_workers = 4
[model]
converters = ["quantize.linear.float8"]
args.dim = 512
[optimizer]
lr = 3e-4
[compile]
enable = true
[parallelism]
module_fqns_per_model_part = [["tok_embeddings", "layers.0"], ["norm"]]
[quantize.linear.float8]
filter_fqns = []
)");
  const JobConfig& config = resolved.config;
  CHECK(config.training.steps == 10000);
  CHECK(config.training.max_norm == 2.0);
  CHECK(config.training.dataset_path == "a/b");
  CHECK(config.training.dataloader.num_workers == 4);
  CHECK(config.model.converters == std::vector{Converter::kFloat8});
  CHECK(config.model.args.dim == 512);
  CHECK(config.optimizer.lr == 3e-4);
  CHECK(config.compile.enable);
  REQUIRE(config.parallelism.module_fqns_per_model_part.has_value());
  CHECK(config.parallelism.module_fqns_per_model_part->at(0).at(1) == "layers.0");
  CHECK(resolved.origin("training.steps") == "job.toml:3:9");
  CHECK(resolved.origin("model.args.dim") == "job.toml:10:12");
}

TEST_CASE("the command line wins over the file and the last option wins") {
  const ResolvedConfig resolved =
      parse("[training]\nsteps = 5\nseq_len = 64",
            {{"training.steps", "6"}, {"training.steps", "7"}, {"compile.enable", "true"}});
  CHECK(resolved.config.training.steps == 7);
  CHECK(resolved.config.training.seq_len == 64);
  CHECK(resolved.config.compile.enable);
  CHECK(resolved.origin("training.steps") == "command line");
  CHECK(resolved.origin("training.seq_len") == "job.toml:3:11");
}

TEST_CASE("all problems come at once in the order of the file") {
  const std::string text = refusal(
      "[training]\nstesp = 5\nseq_len = \"long\"\n[optimiser]\nlr = 1\n[optimizer]\nlr = -0.5\nname = "
      "'SGD'\n",
      {{"training.max_nrom", "1"},
       {"training.steps", "many"},
       {"training.steps", "", false},
       {"compile.enable", ""}});
  CHECK_THAT(
      text,
      Equals(
          "The configuration cannot be read: 9 problems\n"
          "  job.toml:2:9: training.stesp = 5: there is no such key; did you mean training.steps?\n"
          "  job.toml:3:11: training.seq_len = \"long\": expected a whole number of at least 1 and at most "
          "1000000000\n"
          "  job.toml:4:1: [optimiser]: there is no such section; did you mean optimizer?\n"
          "  job.toml:7:6: optimizer.lr = -0.5: expected a number of at least 0\n"
          "  job.toml:8:8: optimizer.name = 'SGD': expected \"AdamW\", \"Adam\" or \"Muon\"; this optimizer "
          "is not "
          "available\n"
          "  command line: --training.max_nrom: there is no such option; did you mean training.max_norm?\n"
          "  command line: --training.steps = many: expected a whole number of at least 1\n"
          "  command line: --training.steps: needs a value: a whole number of at least 1\n"
          "  command line: --compile.enable = : expected true or false"));
}

TEST_CASE("an option without its value needs one") {
  const std::string text = error_of(ExitCode::kUsage, [] {
    parse_config("", "job.toml", {{"model.flavor", "", false}, {"comm.mode", "", false}});
  });
  CHECK_THAT(text, Catch::Contains("command line: --model.flavor: needs a value\n"));
  CHECK_THAT(text, Catch::Contains("command line: --comm.mode: needs a value: \"default\""));
}

TEST_CASE("types are not converted") {
  CHECK_THAT(refusal("[training]\nsteps = 1.0"),
             Contains("job.toml:2:9: training.steps = 1.0: expected a whole number"));
  CHECK_THAT(refusal("[training]\nsteps = \"1\""), Contains("expected a whole number"));
  CHECK_THAT(refusal("[training]\nsteps = [1]"), Contains("training.steps = [1]: expected a whole number"));
  CHECK_THAT(refusal("[training]\nsteps = {a = 1}"),
             Contains("training.steps = {...}: expected a whole number"));
  CHECK_THAT(refusal("[training]\nsteps = 2020-01-01"), Contains("expected a whole number"));
  CHECK_THAT(refusal("[training]\nenable_cpu_offload = 1"), Contains("expected true or false"));
  CHECK_THAT(refusal("[model]\nconverters = \"x\""), Contains("expected a list of"));
  CHECK_THAT(refusal("[compile]\ncomponents = [1]"), Contains("expected a list of"));
  CHECK_THAT(refusal("training = 5"),
             Contains("job.toml:1:12: training = 5: expected a table, written [training]"));
  CHECK_THAT(refusal("[[training]]\nsteps = 5"), Contains("training"));
  CHECK_THAT(refusal("\"training.steps\" = 5"), Contains("there is no such key"));
}

TEST_CASE("a path that is given as a data set is told the key for paths") {
  for (const char* key : {"training", "validation"})
    for (const char* value : {"parquet/allenai/c4", "/data/x.jsonl", "wikitext"})
      CHECK_THAT(
          refusal("", {{std::string(key) + ".dataset", value}}),
          Contains(fmt::format("; files, whatever they are called, are named by {}.dataset_path", key)));
  CHECK_THAT(refusal("", {{"training.dataset", "jsnol"}}), Contains("did you mean jsonl?"));
  CHECK_THAT(refusal("[parallelism]\npipeline_parallel_schedule = \"interleaved_1f1b\""),
             Contains("job.toml:2:30: parallelism.pipeline_parallel_schedule = \"interleaved_1f1b\"") &&
                 Contains("did you mean Interleaved1F1B?"));
  CHECK(parse("[parallelism]\npipeline_parallel_schedule = \"gpipe\"")
            .config.parallelism.pipeline_parallel_schedule == "gpipe");
}

TEST_CASE("a word that is known and not available gets no other one suggested but what is missing") {
  for (const char* name : {"qwen2_moe", "Mixtral"})
    CHECK_THAT(
        refusal("", {{"model.name", name}}),
        Contains("expected \"deepseek_v3\", \"gpt_oss\", \"llama3\", \"llama4\", \"mistral\", \"qwen2\" or "
                 "\"qwen3\"; this family is not "
                 "available; "
                 "flavours of deepseek_v3: debugmodel, 16B, ") &&
            Contains("; of qwen3: debugmodel, debugmodel_moe, 0.6B, ") && !Contains("did you mean"));
  CHECK_THAT(refusal("[model]\nname = \"llama3_ft\""), Contains("torchft is missing") && !Contains("mean"));
  CHECK_THAT(refusal("[model]\nname = \"qwen2.5\""), Contains("Qwen2.5 is qwen2 here") && !Contains("mean"));
  CHECK_THAT(refusal("[model]\nname = \"lama3\""), Contains("did you mean llama3?"));
  CHECK_THAT(refusal("[optimizer]\nname = \"NAdam\""),
             Contains("; this optimizer is not available") && !Contains("mean"));
  CHECK_THAT(refusal("[lr_scheduler]\ndecay_type = \"constant\""),
             Contains("lr_scheduler.decay_ratio = 0.0"));
  CHECK_THAT(refusal("[lr_scheduler]\ndecay_type = \"rsqrt\""), !Contains("mean"));
  CHECK_THAT(refusal("[quantize.linear.mx]\nrecipe_name = \"mxfp4_cutlass\""),
             Contains("; MXFP4 is not available") && !Contains("mean"));
  // Words of the same enumeration: bfloat16 is no misspelling of float16.
  CHECK_THAT(refusal("[training]\nmixed_precision_param = \"float16\""),
             EndsWith("expected \"bfloat16\" or \"float32\""));
  CHECK_THAT(refusal("[training]\nmixed_precision_reduce = \"bfloat16\""), EndsWith("expected \"float32\""));
}

TEST_CASE("keys that torchtitan's module for torchft adds are refused as torchft is") {
  CHECK_THAT(refusal("[fault_tolerance]\nsync_steps = 10"),
             Contains("job.toml:2:14: fault_tolerance.sync_steps = 10: there is no such key; torchft's"));
  CHECK_THAT(refusal("", {{"fault_tolerance.num_fragments", "2"}}), Contains("; torchft's"));
}

TEST_CASE("numbers that do not fit are refused and not clamped") {
  CHECK_THAT(refusal("[training]\nsteps = 99999999999999999999"),
             Contains("training.steps = 99999999999999999999: expected"));
  CHECK_THAT(refusal("[optimizer]\nlr = 1e999"), Contains("optimizer.lr = 1e999: expected"));
  CHECK_THAT(refusal("[optimizer]\nlr = inf"), Contains("optimizer.lr = inf: expected"));
  CHECK_THAT(refusal("[optimizer]\nlr = nan"), Contains("optimizer.lr = nan: expected"));
  CHECK_THAT(refusal("[optimizer]\neps = 0"), Contains("optimizer.eps = 0: expected a number above 0"));
  CHECK(parse("[training]\nsteps = 9_223_372_036_854_775_807").config.training.steps == INT64_MAX);
  CHECK(parse("[debug]\nseed = 0x10").config.debug.seed == 16);
  CHECK_THAT(refusal("[debug]\nseed = 0xffffffffffffffffff"),
             Contains("debug.seed = 0xffffffffffffffffff: expected"));
}

TEST_CASE("NaN and infinity are refused for every key that takes a number") {
  int checked = 0;
  for (const Section& section : schema())
    for (const Option& option : section.options) {
      if (option.kind() != Kind::kNumber) continue;
      for (const char* value : {"nan", "-nan", "inf", "-inf"}) {
        CAPTURE(option.name, value);
        if (option.name == "training.max_norm" && value == std::string("inf")) continue;  // never clips
        CHECK_THAT(refusal(fmt::format("[{}]\n{} = {}", option.section(), option.key(), value)),
                   Contains(option.name) && Contains("expected a number"));
      }
      ++checked;
    }
  CHECK(checked > 10);
}

TEST_CASE("broken TOML is one line with its place") {
  CHECK_THAT(refusal("[training]\nsteps = "), Contains("job.toml:2:") && Contains("not valid TOML"));
  CHECK_THAT(refusal("[training]\nsteps = 1\nsteps = 2"),
             Contains("job.toml:3:9: not valid TOML") && Contains("exists"));
  CHECK_THAT(refusal("[job]\ndescription = \"abc"), Contains("job.toml:2:1: not valid TOML"));
  CHECK_THAT(refusal("[job]\ndescription = '''abc"), Contains("not valid TOML"));
  CHECK_THAT(refusal("[training\nsteps = 1"), Contains("job.toml:1:1: not valid TOML"));
  CHECK(refusal("[training]\nsteps = ").find('\n') == refusal("[training]\nsteps = ").rfind('\n'));
}

TEST_CASE("files from other systems are read") {
  CHECK(parse("\xef\xbb\xbf[training]\r\nsteps = 3\r\n").config.training.steps == 3);
}

TEST_CASE("hostile files are refused in one sentence") {
  const std::pair<std::string, const char*> files[] = {
      {"a = " + repeated("[", 100000) + repeated("]", 100000), "more than 200 opening brackets"},
      {"a = " + repeated("{a=", 80000), "more than 200 opening brackets"},
      {repeated("[", 100000), "more than 200 opening brackets"},
      {"a" + repeated(".a", 100000) + " = 1", "more than 100 dots"},
      {"[a" + repeated(".a", 100000) + "]", "more than 100 dots"},
      {"a = [" + repeated("1,", 100000) + "]", "more than 5000 commas"},
      {std::string(100 << 20, 'a'), "at most 262144 are read"},
      {std::string("a = \0", 5), "a NUL byte"},
      {"a = \"" + std::string(100000, 'x'), "not valid TOML"},
      {std::string(200000, 'a') + " = 1", "there is no such key"},
      // At the guard's limits toml11 itself must hold.
      {"a = " + repeated("[", 199) + repeated("]", 199), "there is no such key"},
      {"a = " + repeated("{a=", 199) + "1" + repeated("}", 199), "there is no such section"},
      {"a" + repeated(".a", 99) + " = 1", "there is no such section"},
      {"a = \"\x1b[31mred\" \n", "not valid TOML"}};
  for (const auto& [toml, why] : files) {
    CAPTURE(toml.substr(0, 20));
    const std::string text = refusal(toml);
    CHECK_THAT(text, Contains("job.toml:1:") && Contains(why));
    CHECK(text.size() < 400);
    CHECK(text.find('\x1b') == std::string::npos);
  }
}

TEST_CASE("many problems are cut off and counted") {
  std::string toml;
  for (int i = 0; i < 10000; ++i) toml += "key" + std::to_string(i) + " = 1\n";
  const std::string text = refusal(toml);
  CHECK_THAT(text, Contains("10,000 problems") && Contains("and 9950 more"));
  CHECK(std::count(text.begin(), text.end(), '\n') == 51);
}

TEST_CASE("long and unprintable values are shown short and harmless") {
  const std::string text = refusal("[training]\nsteps = \"" + std::string(1000, 'x') + "\"");
  CHECK(text.size() < 250);
  CHECK(refusal("\"a\\u001b[31m\" = 1").find('\x1b') == std::string::npos);
}

TEST_CASE("random damage to a real file gives a configuration or an error") {
  const std::string good = read_file(HYPERION_SOURCE_DIR "/configs/debug_model.toml");
  std::mt19937 random(1);
  const std::string tokens[] = {"[",   "]",        "{",    "}", "\"", "'",  "\"\"\"",
                                "'''", "\\u",      "\\",   "=", ".",  ",",  "#",
                                "\n",  "\r",       "_",    "-", "e",  "0x", "1979-05-27T07:32:00Z",
                                "inf", "\xc3\xa9", "\xff", " "};
  int accepted = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string text = good;
    for (int change = 0; change < 1 + round % 5; ++change) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.insert(at, tokens[random() % std::size(tokens)]);
          break;
        case 2:
          text.erase(at, random() % 20);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 40));
      }
    }
    try {
      parse(text);
      ++accepted;
    } catch (const Error& error) {
      REQUIRE(error.code() == ExitCode::kUsage);
    }
  }
  CHECK(accepted > 0);
  for (int round = 0; round < 500; ++round) {
    std::string noise(random() % 300, ' ');
    for (char& c : noise)
      c = round % 2 != 0 ? static_cast<char>(random()) : static_cast<char>(' ' + random() % 95);
    try {
      parse(noise);
    } catch (const Error& error) {
      REQUIRE(error.code() == ExitCode::kUsage);
    }
  }
}

TEST_CASE("every prefix of a real file gives a configuration or an error") {
  const std::string good = read_file(HYPERION_SOURCE_DIR "/configs/debug_model.toml");
  for (size_t size = 0; size < good.size(); size += 3) {
    try {
      parse(good.substr(0, size));
    } catch (const Error& error) {
      REQUIRE(error.code() == ExitCode::kUsage);
    }
  }
}

TEST_CASE("tokenizer_path is read as hf_assets_path with a warning") {
  const ResolvedConfig moved = parse("[model]\ntokenizer_path = \"old\"");
  CHECK(moved.config.model.hf_assets_path == "old");
  CHECK_FALSE(moved.config.model.tokenizer_path.has_value());
  CHECK(moved.origin("model.hf_assets_path") == "job.toml:2:18");
  REQUIRE(moved.warnings.size() == 1);
  CHECK_THAT(moved.warnings[0], Contains("deprecated"));

  const ResolvedConfig both = parse("[model]\ntokenizer_path = \"old\"\nhf_assets_path = \"new\"");
  CHECK(both.config.model.hf_assets_path == "new");
  CHECK(both.warnings.size() == 1);
}

TEST_CASE("the short name of the float8 converter is understood") {
  CHECK(parse("[model]\nconverters = [\"float8\"]").config.model.converters ==
        std::vector{Converter::kFloat8});
}

TEST_CASE("files that cannot be read are configuration errors that name them") {
  const auto refused = [](const fs::path& path) {
    try {
      load_config(path, {});
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kUsage);
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(refused("/no/such/file.toml"), Contains("/no/such/file.toml"));
  CHECK_THAT(refused("/"), Contains("regular file"));
  CHECK_THAT(refused("/dev/zero"), Contains("at most"));

  const test::TemporaryFolder folder;
  CHECK_THAT(refused(folder.write("large.toml", std::string(1 << 20, '\n'))), Contains("at most"));
}

TEST_CASE("the configuration may come from a pipe, but not for several ranks") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const std::string text = "[training]\nsteps = 7\n", path = fmt::format("/dev/fd/{}", ends[0]);
  REQUIRE(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  CHECK_THROWS_WITH(load_config(path, {}, 2), Contains(path) && Contains("each of the 2 ranks"));
  ::close(ends[1]);
  CHECK(load_config(path, {}, 1).config.training.steps == 7);
  ::close(ends[0]);
}

TEST_CASE("an empty path is refused instead of standing for the current folder") {
  for (const std::string key :
       {"job.dump_folder", "model.hf_assets_path", "training.dataset_path", "checkpoint.folder",
        "checkpoint.initial_load_path", "validation.dataset_path"}) {
    CAPTURE(key);
    const size_t dot = key.find('.');
    const std::string toml = fmt::format("[{}]\n{} = \"\"\n", key.substr(0, dot), key.substr(dot + 1));
    CHECK_THROWS_WITH(parse(toml), Contains(key) && Contains("expected a path, which is not empty"));
    CHECK_THROWS_WITH(parse_config("", "f", {{key, ""}}), Contains(key) && Contains("expected a path"));
  }
}

TEST_CASE("a URL is refused by every key that is a path, with the remedy") {
  size_t paths = 0;
  for (const Option& option : all_options()) {
    if (!option.names_a_file()) continue;
    CAPTURE(option.name);
    const std::string toml = fmt::format("[{}]\n{} = \"gs://bucket/a\"\n", option.section(), option.key());
    const std::string refused = option.name + " = ", remedy = "mount what gs:// names";
    CHECK_THROWS_WITH(parse(toml), Contains(refused) && Contains(remedy));
    CHECK_THROWS_WITH(parse_config("", "f", {{option.name, "gs://bucket/a"}}),
                      Contains(refused) && Contains(remedy));
    ++paths;
  }
  CHECK(paths == 13);
  CHECK(parse("[job]\ndescription = \"see https://a.b\"\n").config.job.description == "see https://a.b");
}

TEST_CASE("a loaded file is remembered as the configuration file") {
  const ResolvedConfig resolved =
      load_config(HYPERION_SOURCE_DIR "/configs/debug_model.toml", {{"training.steps", "3"}});
  CHECK(resolved.config.job.config_file == HYPERION_SOURCE_DIR "/configs/debug_model.toml");
  CHECK(resolved.config.training.steps == 3);
  CHECK(resolved.config.model.flavor == "debugmodel");
}

}  // namespace hyperion::config
