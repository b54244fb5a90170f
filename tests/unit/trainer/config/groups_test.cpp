#include <catch2/catch.hpp>

#include <nlohmann/json.hpp>

#include "models/flavors/registry.h"
#include "tests/support/error_of.h"
#include "trainer/config/load.h"
#include "trainer/config/print.h"
#include "trainer/config/schema.h"
#include "trainer/config/validate.h"

namespace hyperion::config {
namespace {

using Catch::Contains;

const std::string kTwoGroups = R"([optimizer]
decay_norms_and_biases = false
[[optimizer.groups]]
name = "embeddings"
match = ["tok_embeddings.weight", "output.weight"]
lr_scale = 0.1
weight_decay = 0.0
[[optimizer.groups]]
match = ["layers.*.attention.w[qk].weight"]
beta2 = 0.99
)";

ResolvedConfig groups_in(const std::string& toml) {
  return parse_config(toml, "job.toml", {});
}

std::string refusal_of(const std::string& toml) {
  return error_of(ExitCode::kUsage, [&] { groups_in(toml); });
}

RunContext facts_of(const ResolvedConfig& resolved) {
  RunContext facts;
  facts.model = model_args(resolved.config.model);
  return facts;
}

// Returns the messages of the checks of a configuration of the debug model.
std::string verdict_on(const std::string& toml) {
  const ResolvedConfig resolved = groups_in(toml);
  return error_of(ExitCode::kUsage, [&] { require_valid_config(resolved, facts_of(resolved)); });
}

}  // namespace

TEST_CASE("groups arrive in the order of the file with their places") {
  const ResolvedConfig resolved = groups_in(kTwoGroups);
  const JobConfig::Optimizer& optimizer = resolved.config.optimizer;
  CHECK_FALSE(optimizer.decay_norms_and_biases);
  REQUIRE(optimizer.groups.size() == 2);
  CHECK(optimizer.groups[0].lr_scale == 0.1);
  CHECK(optimizer.groups[0].weight_decay == 0.0);
  CHECK_FALSE(optimizer.groups[0].beta2);
  CHECK(optimizer.groups[1].beta2 == 0.99);
  CHECK(name_of(optimizer.groups, 0) == "embeddings");
  CHECK(name_of(optimizer.groups, 1) == "group1");
  CHECK(resolved.origin("optimizer.groups[0].lr_scale") == "job.toml:6:12");
  CHECK(resolved.origin("optimizer.groups") == "job.toml:3:1");
  require_valid_config(resolved, facts_of(resolved));
}

TEST_CASE("the first group whose pattern matches a name has the parameter") {
  const ParameterGroups groups = {{.match = {"*.attention.*", "output.weight"}}, {.match = {"layers.*"}}};
  CHECK(group_of(groups, "layers.11.attention.wq.weight") == 0);
  CHECK(group_of(groups, "output.weight") == 0);
  CHECK(group_of(groups, "layers.0.feed_forward.w1.weight") == 1);
  CHECK_FALSE(group_of(groups, "norm.weight"));
  CHECK_FALSE(matches("norm", "norm.weight"));
}

TEST_CASE("groups survive printing as TOML and JSON") {
  const ResolvedConfig resolved = groups_in(kTwoGroups);
  const ResolvedConfig again = groups_in(to_toml(resolved, {}));
  CHECK(again.config.optimizer.groups == resolved.config.optimizer.groups);
  const auto groups = nlohmann::json::parse(to_json(resolved.config))["optimizer"]["groups"];
  CHECK(groups[0]["name"] == "embeddings");
  CHECK(groups[0]["beta1"].is_null());
  CHECK(groups[1]["match"] == std::vector<std::string>{"layers.*.attention.w[qk].weight"});
}

TEST_CASE("a wrong group is refused with its place, its key and what would do") {
  CHECK_THAT(
      refusal_of("[[optimizer.groups]]\nmatch = [\"*\"]\nlr_scal = 2\n"),
      Contains("job.toml:3:11: optimizer.groups[0].lr_scal = 2") && Contains("did you mean lr_scale?"));
  CHECK_THAT(refusal_of("[[optimizer.groups]]\nlr_scale = 2\n"),
             Contains("optimizer.groups[0]: has no match, which names its parameters"));
  CHECK_THAT(
      refusal_of("[[optimizer.groups]]\nmatch = [\"*\"]\nweight_decay = -1\n"),
      Contains("job.toml:3:16: optimizer.groups[0].weight_decay = -1: expected a number of at least 0"));
  CHECK_THAT(refusal_of("[optimizer]\ngroups = 3\n"),
             Contains("expected tables, each written [[optimizer.groups]]"));
  CHECK_THAT(
      error_of(ExitCode::kUsage,
               [] {
                 parse_config("", "job.toml", {{"optimizer.groups.match", "x", true}});
               }),
      Contains("lists of tables are set in the file alone, as [[optimizer.groups]]") && !Contains("data"));
}

TEST_CASE("a pattern that matches nothing names the nearest one and the model's parameters") {
  const std::string said =
      verdict_on("[[optimizer.groups]]\nmatch = [\"tok_embeddings.weight\", \"layers.*.atention.*\"]\n");
  CHECK_THAT(said, Contains("job.toml:2:9: optimizer.groups[0].match = \"layers.*.atention.*\": matches no "
                            "parameter; did you mean layers.*.attention.*?") &&
                       Contains("the model has tok_embeddings.weight, layers.*.attention.wq.weight, ") &&
                       Contains(", norm.weight, output.weight"));
  CHECK_THAT(verdict_on("[[optimizer.groups]]\nmatch = [\"zzz\"]\n"),
             Contains("matches no parameter; the model has"));
  CHECK_THAT(verdict_on("[[optimizer.groups]]\nmatch = []\n"), Contains("names no parameter"));
  CHECK_THAT(verdict_on("[[optimizer.groups]]\nmatch = [\"*\"]\nname = \"a/b\"\n"),
             Contains("expected 1 to 100 letters"));
  CHECK_THAT(verdict_on("[[optimizer.groups]]\nmatch = [\"*\"]\nname = \"a\"\n[[optimizer.groups]]\nmatch = "
                        "[\"*\"]\nname = \"a\"\n"),
             Contains("job.toml:6:8: optimizer.groups[1].name = \"a\": another group has this name"));
  CHECK_THAT(verdict_on("[[optimizer.groups]]\nmatch = [\"*\"]\nlr_scale = 1e300\n"),
             Contains("infinite in fp32"));
  CHECK_THAT(verdict_on("[[optimizer.groups]]\nmatch = [\"*\"]\nbeta2 = 0.99999999\n"),
             Contains("expected at most 0.9999999"));
}

}  // namespace hyperion::config
