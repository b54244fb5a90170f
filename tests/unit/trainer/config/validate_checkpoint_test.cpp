#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/support/error_of.h"
#include "trainer/config/print.h"
#include "trainer/config/validate.h"

namespace hyperion::config {

using Catch::Contains;

namespace {

// The problems of these lines in [checkpoint], which is enabled, in one text.
std::string problems(const std::string& lines, int64_t world_size = 1, const std::string& rest = "") {
  RunContext facts;
  facts.world_size = world_size;
  Problems found;
  check_config(parse_config("[checkpoint]\nenable = true\n" + lines + rest, "job.toml", {}), facts, found);
  std::string text;
  for (const std::string& line : found.lines()) text += line + "\n";
  return text;
}

std::string refusal(const std::string& toml, const std::vector<Override>& overrides = {}) {
  return error_of(ExitCode::kUsage, [&] { parse_config(toml, "job.toml", overrides); });
}

}  // namespace

TEST_CASE("an export of a model that Hugging Face cannot hold is refused with both places") {
  RunContext facts;
  facts.export_problem = {{"n_heads", "dim"}, "n_heads 3 does not divide dim 32"};
  const auto found = [&](const std::string& lines) {
    Problems problems;
    check_config(parse_config(lines + "[model.args]\nn_heads = 3\n", "job.toml", {}), facts, problems);
    return problems.lines();
  };
  CHECK(
      found("[checkpoint]\nenable = true\nlast_save_in_hf = true\n") ==
      std::vector<std::string>{
          "job.toml:3:19: checkpoint.last_save_in_hf = true: the model cannot be exported to Hugging Face: "
          "n_heads 3 does not divide dim 32 (model.args.n_heads: job.toml:5:11); change that, or set false"});
  CHECK(found("[checkpoint]\nenable = true\n").empty());
  CHECK(found("[checkpoint]\nlast_save_in_hf = true\n").empty());
}

TEST_CASE("checkpointing runs with its defaults and with those of v0.2.2") {
  CHECK(problems("", 8).empty());
  CHECK(problems("interval = 10\nlast_save_model_only = false\nexport_dtype = \"float32\"\n"
                 "async_mode = \"async_with_pinned_mem\"\nkeep_latest_k = 2\nload_step = 4\n",
                 8)
            .empty());
  CHECK(problems("load_only = true\nasync_mode = \"async\"\n").empty());
  const JobConfig config;
  CHECK(config.checkpoint.validate_before_training);
  CHECK(config.checkpoint.on_config_change == OnConfigChange::kError);
}

TEST_CASE("saves that contradict each other are refused by name") {
  CHECK_THAT(problems("create_seed_checkpoint = true", 2), Contains("one process, not of 2"));
  CHECK(problems("create_seed_checkpoint = true", 1).empty());
  CHECK_THAT(problems("create_seed_checkpoint = true\n", 8, "[comm]\nmode = \"fake_backend\"\n"),
             Contains("a dry run (comm.mode = \"fake_backend\") saves nothing") && !Contains("one process"));
  CHECK_THAT(problems("create_seed_checkpoint = true\nload_only = true"), Contains("saves nothing"));
  CHECK_THAT(problems("enable_first_step_checkpoint = true\nload_only = true"), Contains("saves nothing"));
  CHECK_THAT(problems("last_save_in_hf = true\nlast_save_model_only = false"),
             Contains("checkpoint.last_save_in_hf = true: expected last_save_model_only = true"));
  CHECK(problems("last_save_in_hf = true").empty());
  CHECK_THAT(problems("export_dtype = \"bfloat16\"\nlast_save_model_only = false"),
             Contains("checkpoint.export_dtype"));
  CHECK(problems("export_dtype = \"bfloat16\"").empty());
}

TEST_CASE("loads that contradict each other are refused by name") {
  CHECK_THAT(problems("initial_load_in_hf = true\ninitial_load_model_only = false"),
             Contains("checkpoint.initial_load_in_hf"));
  CHECK_THAT(problems("initial_load_in_hf_quantized = true"),
             Contains("expected initial_load_in_hf = true too"));
  CHECK(problems("initial_load_in_hf = true\ninitial_load_in_hf_quantized = true").empty());
  CHECK_THAT(problems("exclude_from_loading = [\"optimizer\"]"),
             Contains("expected lr_scheduler in the list too"));
  CHECK(problems("exclude_from_loading = [\"optimizer\", \"lr_scheduler\"]").empty());
  CHECK(problems("exclude_from_loading = [\"dataloader\", \"ema\", \"rng\"]").empty());
  CHECK_THAT(problems("components = [\"model\", \"ema\"]\nexclude_from_loading = [\"ema\"]"),
             Contains("ema is in exclude_from_loading too"));
}

TEST_CASE("transfer takes the model from elsewhere and nothing more") {
  const std::string transfer = "resume_mode = \"transfer\"\n";
  const std::string from = transfer + "initial_load_path = \"old/step-5\"\n";
  CHECK_THAT(problems(transfer), Contains("checkpoint.resume_mode") && Contains("initial_load_path"));
  CHECK(problems(from).empty());
  CHECK(problems(transfer + "initial_load_in_hf = true\n").empty());
  CHECK(problems(from + "components = [\"model\"]").empty());
  CHECK_THAT(problems(from + "components = [\"model\", \"rng\"]"), Contains("checkpoint.components"));
  CHECK_THAT(problems(from + "initial_load_model_only = false"), Contains("initial_load_model_only"));
  CHECK_THAT(problems(from + "exclude_from_loading = [\"model\"]"), Contains("exclude_from_loading"));
  CHECK_THAT(problems(from + "on_config_change = \"keep\""), Contains("checkpoint.on_config_change"));
}

TEST_CASE("continue from elsewhere must read more than the model") {
  const std::string from = "resume_mode = \"continue\"\ninitial_load_path = \"old/step-5\"\n";
  CHECK_THAT(problems(from), Contains("checkpoint.initial_load_model_only"));
  CHECK(problems(from + "initial_load_model_only = false").empty());
  CHECK(problems("resume_mode = \"continue\"\ncomponents = [\"model\", \"optimizer\"]").empty());
}

TEST_CASE("validation with averages needs validation") {
  const std::string ema = "\n[ema]\nenable = true\nvalidate_with_ema = true\n";
  CHECK_THAT(problems("", 1, ema), Contains("ema.validate_with_ema"));
  CHECK(problems("", 1, ema + "[validation]\nenable = true\n").empty());
}

TEST_CASE("unknown parts are refused with the list and the nearest name") {
  const std::string toml = "[checkpoint]\nexclude_from_loading = [\"model\", \"data_loader\"]";
  CHECK_THAT(refusal(toml), Contains("\"train_state\"") && Contains("did you mean dataloader?"));
  CHECK_THAT(refusal("", {{"checkpoint.components", "optimiser"}}), Contains("did you mean optimizer?"));
  CHECK_THAT(refusal("[checkpoint]\nresume_mode = \"continu\""), Contains("did you mean continue?"));
}

TEST_CASE("the rename table keeps the order of the file and flattens dotted keys") {
  const TextTable expected = {{"z.weight", "a.b"}, {R"(old\.(\d+)\.(.*))", "layers.$1.$2"}, {"a", "c"}};
  const ResolvedConfig resolved = parse_config(
      "[checkpoint]\ninterval = 5\n[checkpoint.rename]\nz.weight = \"a.b\"\n"
      "'old\\.(\\d+)\\.(.*)' = \"layers.$1.$2\"\na = \"c\"\n",
      "job.toml", {});
  CHECK(resolved.config.checkpoint.rename == expected);
  CHECK(parse_config(to_toml(resolved), "again.toml", {}).config.checkpoint.rename == expected);
  CHECK_THAT(to_json(resolved.config), Contains("\"z.weight\": \"a.b\""));
  CHECK(parse_config("", "job.toml", {{"checkpoint.rename", "a=b, c.*=d=e"}}).config.checkpoint.rename ==
        TextTable{{"a", "b"}, {"c.*", "d=e"}});
  CHECK(parse_config("[checkpoint]\nrename = {}", "job.toml", {}).config.checkpoint.rename.empty());
}

TEST_CASE("a rename table of anything but texts is refused") {
  CHECK_THAT(refusal("[checkpoint.rename]\na = 1"), Contains("checkpoint.rename = {...}: expected a table"));
  CHECK_FALSE(refusal("[checkpoint.rename]\na = [\"b\"]").empty());
  CHECK_FALSE(refusal("[checkpoint.rename]\na = \"\"").empty());
  CHECK_FALSE(refusal("[checkpoint.rename]\n\"a.b\" = \"x\"\na.b = \"y\"").empty());
  CHECK_FALSE(refusal("[checkpoint]\nrename = \"a=b\"").empty());
  CHECK_FALSE(refusal("", {{"checkpoint.rename", "a"}}).empty());
  std::string many = "[checkpoint.rename]\n";
  for (int i = 0; i < 2000; ++i) many += "k" + std::to_string(i) + " = \"x\"\n";
  CHECK_FALSE(refusal(many).empty());
}

TEST_CASE("checkpoint.writers takes no value but its three") {
  const std::string text = refusal("[checkpoint]\nwriters = \"some\"\n");
  CHECK_THAT(text, Contains("checkpoint.writers") && Contains("\"auto\"") && Contains("\"all\"") &&
                       Contains("one_replica"));
}

TEST_CASE("weights that would not be loaded are refused while checkpoints are off") {
  for (const char* line : {"initial_load_path = \"weights\"\n", "initial_load_in_hf = true\n"}) {
    const std::string off = std::string("[checkpoint]\nenable = false\n") + line;
    Problems found;
    check_config(parse_config(off, "job.toml", {}), {}, found);
    REQUIRE(found.lines().size() == 1);
    CHECK_THAT(found.lines()[0], Contains("expected checkpoint.enable = true") && Contains("load_only"));
    CHECK(problems(line).empty());
  }
}

}  // namespace hyperion::config
