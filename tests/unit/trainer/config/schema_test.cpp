#include "trainer/config/schema.h"

#include <set>

#include <catch2/catch.hpp>

namespace hyperion::config {

TEST_CASE("every option has its own name and member and stands in its section") {
  std::set<std::string> names;
  std::set<size_t> members;
  for (const Section& section : schema()) {
    for (const Option& option : section.options) {
      CAPTURE(option.name);
      CHECK(names.insert(option.name).second);
      CHECK(members.insert(option.offset).second);
      CHECK(option.section() == section.name);
      CHECK(find_option(option.name) == &option);
    }
  }
}

TEST_CASE("every default is inside its own range") {
  for (const Section& section : schema()) {
    for (const Option& option : section.options) {
      CAPTURE(option.name);
      JobConfig config;
      CHECK(assign(option, read(option, JobConfig()), config));
    }
  }
}

TEST_CASE("meanings are one sentence that fits a help line or two") {
  for (const Section& section : schema()) {
    CHECK_FALSE(section.meaning.empty());
    for (const Option& option : section.options) {
      CAPTURE(option.name);
      CHECK(option.meaning.size() > 5);
      CHECK(option.meaning.size() <= 110);
      CHECK(option.meaning.back() == '.');
      CHECK(option.meaning.find('|') == std::string::npos);  // it stands in a Markdown table
    }
  }
}

TEST_CASE("features name existing keys and are off by default unless they work") {
  for (const Feature* feature : features()) {
    CAPTURE(feature->key, feature->condition);
    CHECK(find_option(feature->key) != nullptr);
    if (!feature->refusal.empty()) CHECK_FALSE(feature->on(JobConfig()));
  }
}

TEST_CASE("sections include the tables that only hold tables") {
  CHECK(is_section("training"));
  CHECK(is_section("quantize"));
  CHECK(is_section("quantize.linear"));
  CHECK_FALSE(is_section("quant"));
  CHECK_FALSE(is_section("training.steps"));
  CHECK_FALSE(is_section(""));
}

TEST_CASE("the defaults are those of torchtitan 0.2.2") {
  const JobConfig config;
  CHECK(config.optimizer.lr == 8e-4);
  CHECK(config.lr_scheduler.warmup_steps == 200);
  CHECK(config.training.steps == 10000);
  CHECK(config.training.local_batch_size == 8);
  CHECK(config.training.global_batch_size == -1);
  CHECK(config.parallelism.data_parallel_shard_degree == -1);
  CHECK(config.checkpoint.interval == 500);
  CHECK(config.checkpoint.keep_latest_k == 10);
  CHECK(config.activation_checkpoint.mode == RecomputeMode::kSelective);
  CHECK(config.activation_checkpoint.selective_ac_option == "2");
  CHECK(config.quantize.linear.mx.filter_fqns == std::vector<std::string>{"output"});
  CHECK(config.comm.init_timeout_seconds == 300);
  CHECK(config.comm.train_timeout_seconds == 100);
}

}  // namespace hyperion::config
