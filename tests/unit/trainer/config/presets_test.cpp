// TOML files in the form of torchtitan v0.2.2's dense presets, and Hyperion's own, with the verdict each must
// get.
#include <filesystem>

#include <catch2/catch.hpp>

#include "trainer/config/print.h"
#include "trainer/config/validate.h"

namespace hyperion::config {

using Catch::Contains;
namespace fs = std::filesystem;

namespace {

const fs::path kPresets = HYPERION_SOURCE_DIR "/tests/unit/trainer/config/presets";

std::vector<std::string> verdict(const fs::path& file, std::vector<Override> overrides, int64_t world_size) {
  const ResolvedConfig resolved = load_config(file, overrides);
  RunContext facts;
  facts.world_size = world_size;
  Problems problems;
  check_config(resolved, facts, problems);
  // Whatever the verdict, the resolved form reads back.
  CHECK(to_json(parse_config(to_toml(resolved), "printed", {}).config) == to_json(resolved.config));
  return problems.lines();
}

}  // namespace

TEST_CASE("v0.2.2 debug preset runs unchanged") {
  for (const int64_t world : {1, 2, 8}) CHECK(verdict(kPresets / "llama3_debug.toml", {}, world).empty());
}

TEST_CASE("v0.2.2 dense presets on c4 run once they are told where it is") {
  for (const char* name : {"llama3_8b", "qwen3_0.6b", "qwen3_1.7b", "qwen3_32b"}) {
    CAPTURE(name);
    const fs::path file = kPresets / (std::string(name) + ".toml");
    CHECK(verdict(file, {}, 64).empty());
    Problems missing;
    check_input(load_config(file, {}), "training.dataset_path", "/", missing);
    REQUIRE(missing.lines().size() == 1);
    CHECK_THAT(missing.lines()[0],
               Contains("training.dataset = \"c4\"") && Contains("training.dataset_path"));
  }
}

TEST_CASE("v0.2.2 presets with tensor parallelism run once they are told where c4 is") {
  CHECK(verdict(kPresets / "llama3_70b.toml", {{"training.dataset_path", "c4"}}, 64).empty());
  CHECK(verdict(kPresets / "llama3_405b.toml", {{"training.dataset_path", "c4"}}, 128).empty());
  CHECK(keys_without_effect(load_config(kPresets / "llama3_405b.toml", {})) ==
        std::vector<std::string>{"compile.enable"});
}

TEST_CASE("every preset of ours runs with a data set") {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(HYPERION_SOURCE_DIR "/configs")) {
    if (entry.path().extension() != ".toml") continue;
    CAPTURE(entry.path().string());
    CHECK(verdict(entry.path(), {{"training.dataset_path", "c4"}}, 256).empty());
    CHECK(load_config(entry.path(), {}).config.validation.sequences);  // the same loss on every mesh
    ++count;
  }
  CHECK(count >= 16);
}

TEST_CASE("the debug configuration has the values of v0.2.2") {
  const JobConfig config = load_config(HYPERION_SOURCE_DIR "/configs/debug_model.toml", {}).config;
  CHECK(config.optimizer.lr == 8e-4);
  CHECK(config.lr_scheduler.warmup_steps == 2);
  CHECK(config.lr_scheduler.decay_ratio == 0.8);
  CHECK(config.training.local_batch_size == 8);
  CHECK(config.training.seq_len == 2048);
  CHECK(config.training.steps == 10);
  CHECK(config.metrics.log_freq == 1);
  CHECK(config.activation_checkpoint.selective_ac_option == "2");
  CHECK(uses_default_corpus(config));
}

}  // namespace hyperion::config
