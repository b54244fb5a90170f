#include <catch2/catch.hpp>

#include "tests/unit/checkpoint/storage/storage_fixture.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;

namespace {

StepFolder found(int64_t step, CheckpointKind kind) {
  StepFolder one;
  one.step = step;
  one.kind = kind;
  one.manifest.emplace();
  return one;
}

using Steps = std::vector<int64_t>;

}  // namespace

TEST_CASE("only exact step names are checkpoints") {
  CHECK(step_of_name("step-0") == 0);
  CHECK(step_of_name("step-12") == 12);
  for (const char* name :
       {"step-", "step--1", "step-+1", "step-01", "step-00", "step-1 ", "step-9.bak", "step-x", "tmp_step-9",
        "Step-1", "step-1\n", "step-99999999999999999999", ".step-1", "step_1"})
    CHECK_FALSE(step_of_name(name));
}

TEST_CASE("foreign names in the folder are never listed and never removed") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root);
  for (const int step : {1, 2, 3}) save_checkpoint(folder, step);
  for (const char* name : {"tmp_step-9", "step-9.bak", "step-x"})
    fs::copy(folder.step_path(3), fixture.root / name);
  std::ofstream(fixture.root / "step-7") << "a file";
  fs::create_directory_symlink("step-3", fixture.root / "step-8");
  fs::create_directory(fixture.root / "step-6");
  Steps steps;
  for (const StepFolder& one : folder.scan()) {
    steps.push_back(one.step);
    CHECK(one.complete() == (one.step != 6));
  }
  CHECK(steps == Steps{1, 2, 3, 6});
  CHECK(folder.purge({.keep = 2}) == Steps{1});
  CHECK(names_in(fixture.root) == "step-2 step-3 step-6 step-7 step-8 step-9.bak step-x tmp_step-9");
}

TEST_CASE("a folder that was moved away is found empty and made again by the next save") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root / "run");
  save_checkpoint(folder, 1);
  fs::rename(fixture.root / "run", fixture.root / "moved");
  CHECK(folder.scan().empty());
  save_checkpoint(folder, 2);
  CHECK(names_in(fixture.root / "run") == "step-2");
}

TEST_CASE("The cheap check says why a checkpoint cannot be used") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root);
  const fs::path path = folder.step_path(5);
  const auto why_not = [&] { return cheap_check(path, 5).why_not; };
  save_checkpoint(folder, 5);
  CHECK(why_not().empty());

  SECTION("the folder of another step") {
    fs::rename(path, folder.step_path(6));
    CHECK_THAT(cheap_check(folder.step_path(6), 6).why_not, Catch::Contains("its manifest is of step 5"));
  }
  SECTION("a missing shard; extra files are only noted") {
    std::ofstream(path / "__7_0.distcp") << "stale";
    CHECK(why_not().empty());
    CHECK(extra_files(path, read_manifest(path)) == std::vector<std::string>{"__7_0.distcp"});
    fs::remove(path / "__0_0.distcp");
    CHECK_THAT(why_not(), Catch::Contains("__0_0.distcp: is missing"));
  }
  SECTION("a truncated shard") {
    fs::resize_file(path / "__0_0.distcp", 9999);
    CHECK_THAT(why_not(), Catch::Contains("has 9999 bytes, 10000 were written"));
  }
  SECTION("a damaged manifest") {
    damage(path / kManifestFile, 30);
    CHECK_FALSE(why_not().empty());
  }
  SECTION("no index") {
    fs::remove(path / ".metadata");
    CHECK_THAT(why_not(), Catch::Contains(".metadata: is missing"));
  }
  SECTION("other programs' checkpoints have no manifest") {
    fs::remove(path / kManifestFile);
    CHECK(why_not().empty());
    CHECK(cheap_check(path, 5).kind == CheckpointKind::kForeign);
    fs::rename(path / ".metadata", path / "model.safetensors");
    CHECK(cheap_check(path, 5).kind == CheckpointKind::kSafetensors);
  }
}

TEST_CASE("a checkpoint that lost a file of its index is damaged, and one that never had any is not") {
  StorageFixture fixture;
  const auto damaged = [&](const std::vector<std::string>& names) {
    const fs::path folder = fixture.root / "step-5";
    fs::remove_all(folder);
    fs::create_directories(folder);
    for (const std::string& name : names) std::ofstream(folder / name) << "content";
    return cheap_check(folder, 5).damaged();
  };
  CHECK(damaged({"__0.metadata", "__0_0.distcp", "__1_0.distcp"}));
  CHECK(damaged({"__1.metadata", "__1_0.distcp"}));
  CHECK_FALSE(damaged({"__0.metadata", "__0_0.distcp"}));  // complete
  CHECK_FALSE(damaged({"__0_0.distcp", "__1_0.distcp"}));
  CHECK_FALSE(damaged({"__x.metadata", "__0_0.distcp"}));
}

TEST_CASE("Only our own complete checkpoints count and are removed") {
  std::vector<StepFolder> all = {found(0, CheckpointKind::kPreCheckpoint), found(10, CheckpointKind::kFull),
                                 found(20, CheckpointKind::kFull), found(30, CheckpointKind::kFull),
                                 found(40, CheckpointKind::kModel)};
  CHECK(steps_to_purge(all, {}) == Steps{0});  // the trial run goes when a full one is there
  CHECK(steps_to_purge(all, {.keep = 2}) == Steps{0, 10, 20});
  CHECK(steps_to_purge(all, {.keep = 1}) == Steps{0, 10, 20});  // the newest full one stays to resume from
  CHECK(steps_to_purge(all, {.keep = 1, .newest = 10}) ==
        Steps{0, 20, 30, 40});  // resumed from an older step
  all[3].why_not = "damaged";
  CHECK(steps_to_purge(all, {.keep = 2}) == Steps{0, 10});
  all[2].manifest.reset();  // torchtitan's
  CHECK(steps_to_purge(all, {.keep = 1}) == Steps{0});
  CHECK(steps_to_purge({found(0, CheckpointKind::kSeed), found(1, CheckpointKind::kFull),
                        found(2, CheckpointKind::kFull)},
                       {.keep = 1}) == Steps{1});
  CHECK(steps_to_purge({found(0, CheckpointKind::kPreCheckpoint), found(1, CheckpointKind::kModel)},
                       {.keep = 1})
            .empty());
}

}  // namespace hyperion::checkpoint
