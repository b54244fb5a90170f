#include <cmath>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint/tools/tools.h"
#include "tests/unit/checkpoint/tools/fixture.h"

namespace hyperion::checkpoint {

using namespace test;
namespace fs = std::filesystem;

namespace {

Ran diff(const fs::path& a, const fs::path& b, bool json = false, Selection only = {}) {
  return run_tool(
      [&](std::FILE* out) { return diff_checkpoints({.a = a, .b = b, .only = only, .json = json}, out); });
}

}  // namespace

TEST_CASE("diff finds checkpoints of other meshes equal") {
  const TemporaryFolder folder;
  const fs::path one = save_toy(folder.path() / "one", 1);
  const fs::path other = save_toy(folder.path() / "other", 9, {.shards = 3});
  const Ran ran = diff(one, other);
  CHECK(ran.code == ExitCode::kOk);
  CHECK_THAT(ran.text, Catch::EndsWith("\nequal: 6 tensors and 2 values\n"));
  CHECK(diff(one, other, false, {.all = true}).code == ExitCode::kBadData);
}

TEST_CASE("diff says which numbers differ and by how much") {
  const TemporaryFolder folder;
  const fs::path a = save_toy(folder.path() / "a", 1);
  const fs::path b = save_toy(folder.path() / "b", 1,
                              {.shards = 2,
                               .offsets = {{"norm.weight", 0.5F}},
                               .objects = {{"train_state.step", 8}, {"train_state.more", "x"}},
                               .without = {"layers.0.attention.wq.weight"}});
  const Ran ran = diff(a, b);
  INFO(ran.text);
  CHECK(ran.code == ExitCode::kBadData);
  CHECK_THAT(ran.text, Catch::Contains("only in A (1)") && Catch::Contains("layers.0.attention.wq.weight"));
  CHECK_THAT(ran.text, Catch::Contains("only in B (1)") && Catch::Contains("train_state.more"));
  CHECK_THAT(ran.text, Catch::Contains("on both sides: 5 tensors, 2 values"));
  CHECK_THAT(ran.text, Catch::EndsWith("\ndifferent: 1 name only in A, 1 name only in B, 1 tensor with other "
                                       "numbers, 1 other value\n"));
  const auto json = nlohmann::json::parse(diff(a, b, true).text);
  CHECK(json.at("equal") == false);
  CHECK(json.at("only_a") == nlohmann::json({"layers.0.attention.wq.weight"}));
  const auto& tensor = json.at("different_tensors").at(0);
  CHECK(tensor.at("key") == "norm.weight");
  CHECK(tensor.at("different") == 1);
  CHECK(tensor.at("max_abs") == 0.5);
  double square = 0;  // norm.weight is 0 + c, 1 + c, ... with c = 11/64
  for (int i = 0; i < 5; ++i) square += (i + 11.0 / 64) * (i + 11.0 / 64);
  CHECK(tensor.at("relative_l2").get<double>() == Approx(0.5 / std::sqrt(square)));
  const auto& value = json.at("different_values").at(0);
  CHECK(value.at("key") == "train_state.step");
  CHECK(value.at("a") == "7");
  CHECK(value.at("b") == "8");
}

TEST_CASE("diff compares the numbers of floating-point types with each other") {
  const TemporaryFolder folder;
  const fs::path a = save_toy(folder.path() / "a", 1);
  const fs::path b = folder.path() / "half";
  run_tool([&](std::FILE* out) {
    return convert_checkpoint(
        {.source = a, .destination = b, .format = WeightFormat::kSafetensors, .dtype = Dtype::kBFloat16},
        out);
  });
  const Ran ran = diff(a, b, true, {.component = "model"});
  INFO(ran.text);
  CHECK(ran.code == ExitCode::kBadData);
  const auto json = nlohmann::json::parse(ran.text);
  CHECK(json.at("mismatched").size() == 3);
  CHECK(json.at("mismatched").at(0).at("b") == "bfloat16 [8, 6]");
  CHECK(json.at("different_tensors").size() == 3);
  for (const auto& tensor : json.at("different_tensors")) CHECK(tensor.at("relative_l2") < 0.004);
}

TEST_CASE("diff of names shows both sides without training") {
  const NameList a{"config.toml",
                   {{"norm.weight", {Dtype::kFloat32, {8}, {}}},
                    {"output.weight", {Dtype::kFloat32, {4, 8}, {}}},
                    {"layers.0.w1.weight", {Dtype::kFloat32, {8, 8}, {}}}}};
  NameList b{"step-3",
             {{"norm.weight", {Dtype::kBFloat16, {8}, {}}},
              {"output.weight", {Dtype::kFloat32, {4, 9}, {}}},
              {"layers.0.w_1.weight", {Dtype::kFloat32, {8, 8}, {}}}}};
  const Ran ran = run_tool([&](std::FILE* out) { return diff_names(a, b, false, out); });
  INFO(ran.text);
  CHECK(ran.code == ExitCode::kBadData);
  CHECK_THAT(ran.text, Catch::Contains("A: config.toml\nB: step-3\n"));
  CHECK_THAT(ran.text, Catch::Matches("[^]*layers.0.w1.weight +layers.0.w_1.weight\n[^]*"));
  CHECK_THAT(ran.text, Catch::Matches("[^]*norm.weight +float32 \\[8\\] +bfloat16 \\[8\\]\n[^]*"));
  CHECK_THAT(ran.text, Catch::Contains("2 tensors of another shape or type"));
  b = a;
  const Ran same = run_tool([&](std::FILE* out) { return diff_names(a, b, false, out); });
  CHECK(same.code == ExitCode::kOk);
  CHECK_THAT(same.text, Catch::EndsWith("equal names, shapes and types: 3 tensors\n"));
}

TEST_CASE("diff prints whole names and one line for what differs alike in parameter groups") {
  const TemporaryFolder folder;
  std::map<std::string, Object> before, after;
  for (const int layer : {0, 1, 2}) {
    const std::string group =
        fmt::format("optimizer.param_groups.layers.{}.a_layer_with_a_rather_long_name.weight", layer);
    before[group + ".lr"] = 0.0008;
    after[group + ".lr"] = 0.0007;
    before[group + ".betas"] = 0;
    after[group + ".betas"] = layer == 2 ? 0 : 1;
    before[group + ".eps"] = 0;
    after[group + ".eps"] = layer == 1 ? 1 : 0;
  }
  const fs::path a = save_toy(folder.path() / "a", 1, {.objects = before});
  const fs::path b = save_toy(folder.path() / "b", 1, {.objects = after});
  const Ran ran = diff(a, b);
  INFO(ran.text);
  CHECK_THAT(ran.text, Catch::Contains("\nlr differs in all 3 parameter groups: 0.0008 -> 0.0007\n"));
  CHECK_THAT(ran.text, Catch::Contains("betas differs in 2 of 3 parameter groups: 0 -> 1\n"));
  CHECK_THAT(ran.text,
             Catch::Contains(
                 "\noptimizer.param_groups.layers.1.a_layer_with_a_rather_long_name.weight.eps  0  1\n"));
  CHECK_THAT(ran.text, !Catch::Contains("0.weight.lr"));
  CHECK_THAT(ran.text, Catch::EndsWith("different: 6 other values\n"));
  CHECK(nlohmann::json::parse(diff(a, b, true).text).at("different_values").size() == 6);
}

TEST_CASE("diff refuses what is not one checkpoint and names one") {
  const TemporaryFolder folder;
  const fs::path one = save_toy(folder.path() / "checkpoint", 3);
  const Ran many = diff(one, folder.path() / "checkpoint");
  CHECK(many.code == ExitCode::kUsage);
  CHECK_THAT(many.text, Catch::EndsWith("is a folder of checkpoints: give one, such as " + one.string()));
  const Ran above = diff(folder.path(), one);
  CHECK(above.code == ExitCode::kUsage);
  CHECK_THAT(above.text,
             Catch::Contains("is no checkpoint") && Catch::EndsWith("; did you mean " + one.string() + "?"));
  const Ran missing = diff(one, folder.path() / "nothing");
  CHECK(missing.code == ExitCode::kUsage);
  CHECK_THAT(missing.text, Catch::Contains("/nothing: does not exist"));
}

TEST_CASE("diff refuses a checkpoint with a damaged tensor") {
  const TemporaryFolder folder;
  const fs::path a = save_toy(folder.path() / "a", 1), b = save_toy(folder.path() / "b", 1);
  flip_bit(b / "__0_0.distcp", 700);
  const Ran ran = diff(a, b);
  CHECK(ran.code == ExitCode::kBadData);
  CHECK_THAT(ran.text, Catch::Contains("__0_0.distcp") && Catch::Contains("damaged"));
}

}  // namespace hyperion::checkpoint
