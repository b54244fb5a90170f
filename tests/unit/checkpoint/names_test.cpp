#include "checkpoint/names.h"

#include <algorithm>
#include <functional>

#include <catch2/catch.hpp>

#include "base/error.h"

namespace hyperion::checkpoint {

using Catch::Contains;

namespace {

std::string message(const std::function<void()>& act, ExitCode code) {
  try {
    act();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  FAIL("accepted");
  return "";
}

std::vector<std::string> numbered(const std::string& prefix, int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(prefix + std::to_string(i) + ".attention.wq.weight");
  return names;
}

}  // namespace

TEST_CASE("segments of wrappers vanish at any depth") {
  for (const char* key : {"layers.0.attention.wq.weight", "_orig_mod.layers.0.attention.wq.weight",
                          "layers.0._orig_mod.attention.wq.weight", "module.layers.0.attention.wq.weight",
                          "module.module._orig_mod.layers.0.attention.wq.weight",
                          "layers.0._checkpoint_wrapped_module.attention._fsdp_wrapped_module.wq.weight",
                          "_fsdp_wrapped_module.layers.0.module.attention.wq._orig_mod.weight"}) {
    CAPTURE(key);
    CHECK(canonical_name(key) == "layers.0.attention.wq.weight");
  }
  CHECK(canonical_name("optimizer.state.layers.0._orig_mod.attention.wq.weight.exp_avg") ==
        "optimizer.state.layers.0.attention.wq.weight.exp_avg");
  CHECK(canonical_name("optimizer.param_groups.module.norm.weight.lr") ==
        "optimizer.param_groups.norm.weight.lr");
  CHECK(canonical_name("ema._orig_mod.norm.weight") == "ema.norm.weight");
}

TEST_CASE("only whole segments of parameter names are taken for wrappers") {
  for (const char* key :
       {"layers.0.my_orig_mod.weight", "modules.0.weight", "dataloader.module.state", "train_state._orig_mod",
        "lr_scheduler.module", "rng.module.0", "module", "_orig_mod.module", "", "optimizer.state.x"}) {
    CAPTURE(key);
    CHECK(canonical_name(key) == key);
  }
}

TEST_CASE("two keys that become one are an error naming both") {
  const std::string text = message(
      [] {
        NameMap().apply(std::vector<std::string>{"norm.weight", "output.weight", "_orig_mod.norm.weight"});
      },
      ExitCode::kBadData);
  CHECK_THAT(text, Contains("norm.weight") && Contains("_orig_mod.norm.weight"));
}

TEST_CASE("every order of wrappers gives the same names") {
  std::vector<std::string> wrappers = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module",
                                       "module"};
  std::sort(wrappers.begin(), wrappers.end());
  do {
    for (size_t used = 0; used <= wrappers.size(); ++used) {
      std::string inside;
      for (size_t i = 0; i < used; ++i) inside += wrappers[i] + ".";
      CHECK(canonical_name(inside + "layers.1." + inside + "ffn_norm.weight") == "layers.1.ffn_norm.weight");
    }
  } while (std::next_permutation(wrappers.begin(), wrappers.end()));
}

TEST_CASE("all differences come in one message with the nearest names") {
  NameDifferences differences =
      compare_names({"a.norm.weight", "layers.0.attention.wq.weight", "output.weight"},
                    {"a.norm.weight", "layers.0.attention.wqq.weight", "extra"});
  CHECK(differences.missing == std::vector<std::string>{"layers.0.attention.wq.weight", "output.weight"});
  CHECK(differences.unexpected == std::vector<std::string>{"extra", "layers.0.attention.wqq.weight"});
  differences.mismatched.push_back({"a.norm.weight", "float32 [8]", "bfloat16 [4]"});
  const std::string text = explain_differences("step-7", differences);
  CHECK_THAT(text, Contains("step-7") && Contains("2 missing") && Contains("2 unexpected") &&
                       Contains("layers.0.attention.wq.weight (nearest there: "
                                "layers.0.attention.wqq.weight)") &&
                       Contains("a.norm.weight: expected float32 [8], found bfloat16 [4]"));
  CHECK(explain_differences("x", compare_names({"a", "b"}, {"b", "a"})).empty());
}

TEST_CASE("the message stays short for a checkpoint in which everything differs") {
  std::vector<std::string> hostile = numbered("blocks.", 5000);
  hostile.push_back(std::string(1 << 20, '\x1b'));
  const std::string text = explain_differences("x", compare_names(numbered("layers.", 5000), hostile));
  CHECK_THAT(text, Contains("5000 missing") && Contains("5001 unexpected") && Contains("and 4980 more"));
  CHECK(text.size() < 20000);
  CHECK(text.find('\x1b') == std::string::npos);
}

TEST_CASE("old names are renamed by patterns in the order of the table") {
  const NameMap map(RenameTable{{"embed.weight", "tok_embeddings.weight"},
                                {R"(blocks\.(\d+)\.special\.(.*))", "layers.$1.attention.$2"},
                                {R"(blocks\.(\d+)\.(.*))", "layers.$1.$2"}});
  CHECK(map.apply("embed.weight") == "tok_embeddings.weight");
  CHECK(map.apply("old.embed.weight") == "old.embed.weight");  // a pattern matches a whole name
  CHECK(map.apply("blocks.11._orig_mod.special.wq.weight") == "layers.11.attention.wq.weight");
  CHECK(map.apply("blocks.3.ffn_norm.weight") == "layers.3.ffn_norm.weight");
  CHECK(map.apply("optimizer.state.blocks.3.ffn_norm.weight.exp_avg_sq") ==
        "optimizer.state.layers.3.ffn_norm.weight.exp_avg_sq");
  CHECK(map.apply("optimizer.param_groups.embed.weight.lr") ==
        "optimizer.param_groups.tok_embeddings.weight.lr");
  CHECK(map.apply("ema.embed.weight") == "ema.tok_embeddings.weight");
  CHECK(NameMap(RenameTable{{".*", "x"}}).apply("train_state.step") == "train_state.step");
}

TEST_CASE("collisions and unusable patterns are errors") {
  CHECK_THAT(message(
                 [] {
                   NameMap(RenameTable{{"[ab]", "c"}}).apply(std::vector<std::string>{"a", "b"});
                 },
                 ExitCode::kBadData),
             Contains("a and b both become c"));
  CHECK_THAT(message(
                 [] {
                   NameMap(RenameTable{{"(", "c"}});
                 },
                 ExitCode::kUsage),
             Contains("not a regular expression"));
  CHECK_THAT(message(
                 [] {
                   NameMap(RenameTable{{"(a)", "$2"}}).apply("a");
                 },
                 ExitCode::kUsage),
             Contains("cannot be applied"));
  CHECK_THAT(message(
                 [] {
                   NameMap(RenameTable{{std::string(5000, 'a'), "c"}});
                 },
                 ExitCode::kUsage),
             Contains("at most"));
  // Exponential backtracking ends at a limit.
  CHECK_THAT(message(
                 [] {
                   NameMap(RenameTable{{"(a+)+[bd]", "c"}}).apply(std::string(60, 'a') + "c");
                 },
                 ExitCode::kUsage),
             Contains("cannot be applied"));
}

TEST_CASE("the hash of names changes with every name and not with their order") {
  CHECK(names_hash({"a", "b"}) == names_hash({"b", "a"}));
  CHECK(names_hash({"a", "b"}) != names_hash({"ab"}));
  CHECK(names_hash({"a", "b"}) != names_hash({"a", "c"}));
  CHECK(names_hash({}) != names_hash({""}));
}

}  // namespace hyperion::checkpoint
