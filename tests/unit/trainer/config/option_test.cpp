#include "trainer/config/option.h"

#include <limits>

#include <catch2/catch.hpp>

#include "trainer/config/schema.h"

namespace hyperion::config {
namespace {

const Option& option(const std::string& name) {
  const Option* found = find_option(name);
  REQUIRE(found != nullptr);
  return *found;
}

bool accepts(const std::string& name, const Value& value) {
  JobConfig config;
  return assign(option(name), value, config);
}

}  // namespace

TEST_CASE("an option knows its type and whether it may be unset") {
  CHECK(option("training.steps").kind() == Kind::kInteger);
  CHECK(option("optimizer.lr").kind() == Kind::kNumber);
  CHECK(option("metrics.enable_jsonl").kind() == Kind::kBool);
  CHECK(option("model.converters").kind() == Kind::kList);
  CHECK(option("parallelism.module_fqns_per_model_part").kind() == Kind::kListOfLists);
  CHECK(option("training.dataset_path").optional());
  CHECK_FALSE(option("training.dataset").optional());
  CHECK(option("training.dataloader.num_workers").section() == "training.dataloader");
  CHECK(option("training.dataloader.num_workers").key() == "num_workers");
}

TEST_CASE("assign stores a value of the right type and leaves the rest alone") {
  JobConfig config;
  CHECK(assign(option("training.steps"), int64_t{7}, config));
  CHECK(config.training.steps == 7);
  CHECK(assign(option("training.dataset_path"), std::string("x"), config));
  CHECK(config.training.dataset_path == "x");
  CHECK(assign(option("training.dataset_path"), Value(), config));
  CHECK_FALSE(config.training.dataset_path.has_value());
  CHECK_FALSE(assign(option("training.steps"), std::string("7"), config));
  CHECK_FALSE(assign(option("training.steps"), 7.0, config));
  CHECK_FALSE(assign(option("training.steps"), Value(), config));
  CHECK(config.training.steps == 7);
}

TEST_CASE("a whole number is accepted where a number is expected") {
  JobConfig config;
  CHECK(assign(option("training.max_norm"), int64_t{2}, config));
  CHECK(config.training.max_norm == 2.0);
}

TEST_CASE("ranges are checked at their ends") {
  CHECK(accepts("training.steps", int64_t{1}));
  CHECK_FALSE(accepts("training.steps", int64_t{0}));
  CHECK(accepts("training.global_batch_size", int64_t{-1}));
  CHECK_FALSE(accepts("training.global_batch_size", int64_t{0}));
  CHECK(accepts("checkpoint.keep_latest_k", int64_t{0}));
  CHECK_FALSE(accepts("checkpoint.keep_latest_k", int64_t{1}));
  CHECK(accepts("checkpoint.keep_latest_k", int64_t{2}));
  CHECK_FALSE(accepts("checkpoint.interval", int64_t{0}));
  CHECK_FALSE(accepts("validation.steps", int64_t{0}));
  CHECK(accepts("validation.steps", int64_t{-1}));
  CHECK(accepts("lr_scheduler.decay_ratio", 1.0));
  CHECK_FALSE(accepts("lr_scheduler.decay_ratio", 1.0001));
  CHECK_FALSE(accepts("optimizer.beta1", 1.0));
  CHECK_FALSE(accepts("training.max_norm", 0.0));
  CHECK(accepts("training.max_norm", std::numeric_limits<double>::infinity()));
  CHECK_FALSE(accepts("training.max_norm", -std::numeric_limits<double>::infinity()));
  CHECK_FALSE(accepts("training.max_norm", std::numeric_limits<double>::quiet_NaN()));
  CHECK_FALSE(accepts("optimizer.lr", std::numeric_limits<double>::infinity()));
  CHECK_FALSE(accepts("optimizer.lr", std::numeric_limits<double>::quiet_NaN()));
}

TEST_CASE("choices are checked in texts and in every entry of a list") {
  CHECK(accepts("optimizer.name", std::string("Adam")));
  CHECK_FALSE(accepts("optimizer.name", std::string("adam")));
  CHECK(accepts("model.converters", std::vector<std::string>{"quantize.linear.float8"}));
  CHECK_FALSE(accepts("model.converters", std::vector<std::string>{"quantize.linear.float8", "fp8"}));
}

TEST_CASE("keys of enumerations take and give the texts declared beside them") {
  JobConfig config;
  CHECK(assign(option("optimizer.name"), std::string("Adam"), config));
  CHECK(config.optimizer.name == OptimizerName::kAdam);
  CHECK(read(option("optimizer.name"), config) == Value(std::string("Adam")));
  CHECK(option("optimizer.name").choices == std::vector<std::string>{"AdamW", "Adam", "Muon"});

  const std::vector<std::string> both = {"quantize.linear.mx", "quantize.linear.float8"};
  CHECK(assign(option("model.converters"), both, config));
  CHECK(config.model.converters == std::vector{Converter::kMx, Converter::kFloat8});
  CHECK(read(option("model.converters"), config) == Value(both));

  const Option& recipe = option("quantize.linear.float8.recipe_name");
  CHECK(recipe.optional());
  CHECK(assign(recipe, std::string("rowwise"), config));
  CHECK(config.quantize.linear.float8.recipe_name == float8::Recipe::kRowwise);
  CHECK(assign(recipe, Value(), config));
  CHECK_FALSE(config.quantize.linear.float8.recipe_name.has_value());

  CHECK_FALSE(accepts("training.mixed_precision_reduce", std::string("bfloat16")));  // .only() some of them
  CHECK_FALSE(accepts("checkpoint.export_dtype", std::string("int64")));
}

TEST_CASE("selective checkpointing takes op or a positive number as text") {
  CHECK(accepts("activation_checkpoint.selective_ac_option", std::string("op")));
  CHECK(accepts("activation_checkpoint.selective_ac_option", std::string("2")));
  CHECK_FALSE(accepts("activation_checkpoint.selective_ac_option", std::string("0")));
  CHECK_FALSE(accepts("activation_checkpoint.selective_ac_option", std::string("two")));
  CHECK_FALSE(accepts("activation_checkpoint.selective_ac_option", int64_t{2}));
}

TEST_CASE("command-line texts are read by the type of their option") {
  CHECK(parse_text(option("training.steps"), "10_000") == Value(int64_t{10000}));
  CHECK(parse_text(option("training.steps"), "-1") == Value(int64_t{-1}));
  CHECK(parse_text(option("training.steps"), "+3") == Value(int64_t{3}));
  for (const char* bad :
       {"", "1.5", "1e3", "_1", "1_", "1__0", "0x10", "5 ", "+-3", "99999999999999999999"}) {
    CAPTURE(bad);
    CHECK_FALSE(parse_text(option("training.steps"), bad).has_value());
  }
  CHECK(parse_text(option("optimizer.lr"), "8e-4") == Value(8e-4));
  CHECK(parse_text(option("optimizer.lr"), "1") == Value(1.0));
  CHECK_FALSE(parse_text(option("optimizer.lr"), "1e999").has_value());
  CHECK_FALSE(parse_text(option("optimizer.lr"), "fast").has_value());
  CHECK(parse_text(option("compile.enable"), "True") == Value(true));
  CHECK_FALSE(parse_text(option("compile.enable"), "yes").has_value());
  CHECK(parse_text(option("compile.components"), "model, loss") ==
        Value(std::vector<std::string>{"model", "loss"}));
  CHECK(parse_text(option("compile.components"), "") == Value(std::vector<std::string>{}));
  CHECK(parse_text(option("training.dataset_path"), "None") == Value());
  CHECK(parse_text(option("activation_checkpoint.mode"), "none") == Value(std::string("none")));
  CHECK(parse_text(option("parallelism.module_fqns_per_model_part"), "a,b;c") ==
        Value(std::vector<std::vector<std::string>>{{"a", "b"}, {"c"}}));
}

TEST_CASE("literals are TOML and keep their type") {
  CHECK(toml_text(Value(8e-4)) == "0.0008");
  CHECK(toml_text(Value(1.0)) == "1.0");
  CHECK(toml_text(Value(1e-8)) == "1e-08");
  CHECK(toml_text(Value(int64_t{-1})) == "-1");
  CHECK(toml_text(Value(true)) == "true");
  CHECK(toml_text(Value(std::string("a\"\\\n\x7f"))) == "\"a\\\"\\\\\\n\\u007f\"");
  CHECK(toml_text(Value(std::vector<std::string>{"a", "b"})) == "[\"a\", \"b\"]");
  CHECK(toml_text(Value(std::vector<std::vector<std::string>>{{"a"}, {}})) == "[[\"a\"], []]");
}

TEST_CASE("what an option expects is said in words") {
  CHECK(expected(option("training.global_batch_size")) ==
        "a whole number of at least 1 and at most 1000000000, or -1");
  CHECK(expected(option("training.max_norm")) == "a number above 0, or inf");
  CHECK(expected(option("optimizer.eps")) == "a number above 0");
  CHECK(expected(option("optimizer.name")) == "\"AdamW\", \"Adam\" or \"Muon\"");
  CHECK(expected(option("compile.components")) == "a list of \"model\" or \"loss\"");
}

}  // namespace hyperion::config
