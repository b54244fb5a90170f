#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint/tools/tools.h"
#include "tests/unit/checkpoint/tools/fixture.h"

namespace hyperion::checkpoint {

using namespace test;
namespace fs = std::filesystem;

namespace {

Ran list(const fs::path& path, bool json = false) {
  return run_tool([&](std::FILE* out) { return list_checkpoints({.path = path, .json = json}, out); });
}
Ran prune(const fs::path& path, int64_t keep, bool dry_run) {
  return run_tool([&](std::FILE* out) {
    return prune_checkpoints({.path = path, .keep = keep, .dry_run = dry_run}, out);
  });
}

// A job's folder: full steps 1, 2 and 4, weights of 5, a truncated 6, one of PyTorch, and foreign names.
void fill(const fs::path& folder) {
  for (const int64_t step : {1, 2, 4}) save_toy(folder, step, {.shards = 2});
  save_toy(folder, 5, {.kind = CheckpointKind::kModel});
  fs::resize_file(save_toy(folder, 6) / "__0_0.distcp", 100);
  fs::copy(fs::path(HYPERION_SOURCE_DIR) / "tests/goldens/dcp/misc", folder / "step-3");
  fs::create_directory(folder / ".incoming-dead");
  fs::create_directory(folder / "tmp_step-9");
  std::ofstream(folder / "step-7") << "a file";
}

}  // namespace

TEST_CASE("ls shows the checkpoints of a job and what else lies there") {
  const TemporaryFolder folder;
  fill(folder.path());
  const Ran ran = list(folder.path());
  INFO(ran.text);
  CHECK(ran.code == ExitCode::kOk);
  CHECK_THAT(ran.text, Catch::Matches("[^]* 2 +full +2 +4 +[0-9.]+ KiB +just now +complete\n[^]*"));
  CHECK_THAT(ran.text, Catch::Matches("[^]* 3 +DCP, no manifest +- [^]*"));
  CHECK_THAT(ran.text, Catch::Matches("[^]* 5 +model +1 +3 [^]* complete, newest\n[^]*"));
  CHECK_THAT(ran.text, Catch::Contains("has 100 bytes"));
  CHECK_THAT(ran.text,
             Catch::Matches("[^]*\n\\.incoming-dead +a save[^]*\nstep-7 +not a[^]*\ntmp_step-9 +not a[^]*"));
  const auto json = nlohmann::json::parse(list(folder.path(), true).text);
  CHECK(json.at("checkpoints").size() == 6);
  CHECK(json.at("checkpoints").at(4).at("newest") == true);
  CHECK(json.at("checkpoints").at(5).at("complete") == false);
  CHECK(json.at("others").size() == 3);
}

TEST_CASE("ls of one checkpoint counts its components and lists its keys") {
  const TemporaryFolder folder;
  const fs::path path = save_toy(folder.path(), 3, {.shards = 2});
  const Ran ran = list(path);
  INFO(ran.text);
  CHECK_THAT(ran.text, Catch::Contains("full, step 3, by 2 ranks, just now, 4 files"));
  CHECK_THAT(ran.text, Catch::Matches("[^]*\nmodel +3 +93 +372 B +float32 +0\n[^]*"));
  CHECK_THAT(ran.text, Catch::Matches("[^]*\nrng +0 +0 +0 B +2\n[^]*"));
  const auto json = nlohmann::json::parse(list(path / "", true).text);
  CHECK(json.at("tensors").at("tok_embeddings.weight").at("shape") == nlohmann::json({10, 4}));
  CHECK(json.at("tensors").at("tok_embeddings.weight").at("chunks").size() == 2);
  CHECK(json.at("values").size() == 5);
  CHECK(json.at("components").at("model").at("elements") == 93);
  const Ran hf = list(fs::path(HYPERION_SOURCE_DIR) / "tests/goldens/hf/hf_single");
  CHECK_THAT(hf.text, Catch::Contains("safetensors"));
  CHECK(list(folder.path() / "none").code == ExitCode::kUsage);
}

TEST_CASE("ls of a dump folder asks whether its checkpoints were meant") {
  const TemporaryFolder folder;
  save_toy(folder.path() / "checkpoint", 3);
  const Ran ran = list(folder.path());
  CHECK(ran.code == ExitCode::kOk);
  CHECK_THAT(ran.text,
             Catch::Contains(": no checkpoints; did you mean " + (folder.path() / "checkpoint").string()));
}

TEST_CASE("prune says what would go and then removes just that") {
  const TemporaryFolder folder;
  fill(folder.path());
  const Ran dry = prune(folder.path(), 1, true);
  INFO(dry.text);
  CHECK(dry.code == ExitCode::kOk);
  CHECK_THAT(dry.text, Catch::Matches("[^]* 1 +full [^]*would go +older than those kept\n[^]*"));
  CHECK_THAT(dry.text, Catch::Matches(
                           "[^]* 3 +DCP, no manifest [^]*stays +is of another program: never removed\n[^]*"));
  CHECK_THAT(dry.text, Catch::Matches("[^]* 4 +full [^]*stays +newest that holds everything\n[^]*"));
  CHECK_THAT(dry.text, Catch::Matches("[^]* 5 +model [^]*stays +newest\n[^]*"));
  CHECK_THAT(dry.text, Catch::Contains("is not complete: never removed by itself"));
  CHECK_THAT(dry.text, Catch::Contains("2 checkpoints would be removed"));
  for (const int step : {1, 2, 3, 4, 5, 6}) CHECK(fs::exists(folder.path() / fmt::format("step-{}", step)));

  const Ran done = prune(folder.path(), 1, false);
  CHECK(done.code == ExitCode::kOk);
  CHECK_THAT(done.text, Catch::Contains("2 checkpoints removed"));
  for (const int step : {1, 2}) CHECK_FALSE(fs::exists(folder.path() / fmt::format("step-{}", step)));
  for (const char* name : {"step-3", "step-4", "step-5", "step-6", "step-7", "tmp_step-9"})
    CHECK(fs::exists(folder.path() / name));
  CHECK_THAT(prune(folder.path(), 1, false).text, Catch::Contains("0 checkpoints removed"));
}

TEST_CASE("prune leaves a folder alone that a run writes to") {
  const TemporaryFolder folder;
  save_toy(folder.path(), 1);
  save_toy(folder.path(), 2);
  const FolderLock lock(folder.path());
  CHECK(prune(folder.path(), 1, false).code == ExitCode::kUsage);
  CHECK(fs::exists(folder.path() / "step-1"));
  CHECK(prune(folder.path(), 1, true).code == ExitCode::kOk);
  CHECK(prune(folder.path(), 0, true).code == ExitCode::kUsage);
  CHECK(prune(folder.path() / "step-1", 1, true).code == ExitCode::kUsage);
}

}  // namespace hyperion::checkpoint
