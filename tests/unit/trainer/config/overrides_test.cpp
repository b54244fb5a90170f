#include "trainer/config/overrides.h"

#include <catch2/catch.hpp>

namespace hyperion::config {

namespace {

// The overrides as "name=value" ("name?" without one), then "|" and what was left.
std::vector<std::string> taken(std::vector<std::string> arguments) {
  std::vector<std::string> out;
  for (const Override& o : take_overrides(arguments))
    out.push_back(o.name + (o.has_value ? "=" + o.value : "?"));
  out.push_back("|");
  out.insert(out.end(), arguments.begin(), arguments.end());
  return out;
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("values follow a blank or an equals sign") {
  CHECK(taken({"train", "f.toml", "--training.steps", "5", "--optimizer.lr=1e-3"}) ==
        Words{"training.steps=5", "optimizer.lr=1e-3", "|", "train", "f.toml"});
  CHECK(taken({"--training.steps", "5", "f.toml"}) == Words{"training.steps=5", "|", "f.toml"});
  CHECK(taken({"--job.description=a=b", "--job.description="}) ==
        Words{"job.description=a=b", "job.description=", "|"});
}

TEST_CASE("dashes and underscores are alike in names and untouched in values") {
  CHECK(taken({"--training.local-batch-size", "2"}) == Words{"training.local_batch_size=2", "|"});
  CHECK(taken({"--lr-scheduler.decay-type=for-loop"}) == Words{"lr_scheduler.decay_type=for-loop", "|"});
}

TEST_CASE("booleans need no value and can be negated") {
  CHECK(taken({"--compile.enable", "f.toml"}) == Words{"compile.enable=true", "|", "f.toml"});
  CHECK(taken({"--compile.no-enable", "f.toml"}) == Words{"compile.enable=false", "|", "f.toml"});
  CHECK(taken({"--compile.enable", "false", "f.toml"}) == Words{"compile.enable=false", "|", "f.toml"});
  CHECK(taken({"--compile.enable=True"}) == Words{"compile.enable=True", "|"});
  // Only booleans are negated, and a negation takes no value.
  CHECK(taken({"--training.no_steps"}) == Words{"training.no_steps?", "|"});
  CHECK(taken({"--compile.no_enable=false"}) == Words{"compile.no_enable=false", "|"});
}

TEST_CASE("a negative number is a value and another option is not") {
  CHECK(taken({"--training.global_batch_size", "-1"}) == Words{"training.global_batch_size=-1", "|"});
  CHECK(taken({"--training.steps", "--compile.enable"}) ==
        Words{"training.steps?", "compile.enable=true", "|"});
  CHECK(taken({"--training.steps"}) == Words{"training.steps?", "|"});
}

TEST_CASE("an unknown option does not swallow the file") {
  CHECK(taken({"--compile.enabel", "f.toml"}) == Words{"compile.enabel?", "|", "f.toml"});
  CHECK(taken({"--training.stesp", "5", "f.toml"}) == Words{"training.stesp=5", "|", "f.toml"});
}

TEST_CASE("plain options and paths with dots are left alone") {
  CHECK(taken({"tokenize", "--out", "a.b", "--out=a.b", "x.json", "-v.x"}) ==
        Words{"|", "tokenize", "--out", "a.b", "--out=a.b", "x.json", "-v.x"});
}

TEST_CASE("an option is written as a shell and the command line take it back") {
  CHECK(override_text("optimizer.lr", "0.1") == "--optimizer.lr=0.1");
  CHECK(override_text("checkpoint.exclude_from_loading", "rng,dataloader") ==
        "--checkpoint.exclude_from_loading=rng,dataloader");
  CHECK(override_text("job.dump_folder", "my runs") == "'--job.dump_folder=my runs'");
}

}  // namespace hyperion::config
