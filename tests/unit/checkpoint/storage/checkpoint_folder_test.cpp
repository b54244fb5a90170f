#include "checkpoint/storage/checkpoint_folder.h"

#include <catch2/catch.hpp>
#include <sys/stat.h>

#include "base/printable.h"
#include "checkpoint/storage/shard_reader.h"
#include "tests/unit/checkpoint/storage/storage_fixture.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;

namespace {

std::string failed_save(const std::function<void()>& action) {
  return error_of(ExitCode::kSaveFailed, action);
}

// The save that step-N holds, all of it verified.
std::string save_id_at(const CheckpointFolder& folder, int64_t step) {
  const fs::path path = folder.step_path(step);
  const Manifest manifest = read_manifest(path);
  for (const FileRecord& record : manifest.files) verify_file(path, record);
  return slurp(path / ".metadata") == "index of " + manifest.save_id ? manifest.save_id : "mixed";
}

// The durable steps of `action`, as "fsync step-1/.metadata".
std::vector<std::string> steps_of(const fs::path& root, const std::function<void()>& action) {
  std::vector<std::string> steps;
  observe_durable_steps([&](std::string_view step, const fs::path& path) {
    steps.push_back(std::string(step) + " " + path.lexically_relative(root).string());
  });
  action();
  observe_durable_steps({});
  return steps;
}

// Position of a step, which must be there; `last`: of its last occurrence.
size_t position(const std::vector<std::string>& steps, const std::string& step, bool last = false) {
  size_t at = steps.size();
  for (size_t i = 0; i < steps.size(); ++i)
    if (steps[i] == step && (last || at == steps.size())) at = i;
  INFO(step);
  REQUIRE(at < steps.size());
  return at;
}

}  // namespace

TEST_CASE("A save is durable in the order of the commit protocol") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root);
  const std::vector<std::string> steps = steps_of(fixture.root, [&] { save_checkpoint(folder, 7); });
  const std::string in = ".incoming-save7n1";
  const size_t renamed = position(steps, "rename step-7");
  const size_t folder_synced = position(steps, "fsync " + in);
  CHECK(position(steps, "mkdir " + in) < position(steps, "fsync ."));
  CHECK(position(steps, "fsync .") < position(steps, "create " + in + "/__0_0.distcp"));
  CHECK(position(steps, "fsync " + in + "/__0_0.distcp", true) <
        position(steps, "create " + in + "/.metadata"));
  for (const char* name : {"__0_0.distcp", ".metadata", "hyperion.json"})
    CHECK(position(steps, "fsync " + in + "/" + name, true) < folder_synced);
  CHECK(folder_synced < renamed);
  CHECK(renamed + 1 == position(steps, "fsync .", true));
  CHECK(steps.size() == renamed + 2);
}

TEST_CASE("Removing a checkpoint takes its name away durably before its files") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root);
  save_checkpoint(folder, 1);
  save_checkpoint(folder, 2);
  const std::vector<std::string> steps = steps_of(fixture.root, [&] { folder.purge({.keep = 1}); });
  REQUIRE(steps.size() == 3);
  CHECK_THAT(steps[0], Catch::StartsWith("rename .trash-"));
  CHECK(steps[1] == "fsync .");
  CHECK_THAT(steps[2], Catch::StartsWith("unlink .trash-"));
  CHECK(names_in(fixture.root) == "step-2");
}

TEST_CASE("an existing step is replaced as a whole") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root);
  save_checkpoint(folder, 4, CheckpointKind::kFull, 1);
  std::ofstream(folder.step_path(4) / "__9_0.distcp") << "of a larger world";
  const std::vector<std::string> steps =
      steps_of(fixture.root, [&] { save_checkpoint(folder, 4, CheckpointKind::kFull, 2); });
  const size_t exchanged = position(steps, "exchange step-4");
  CHECK(steps[exchanged + 1] == "fsync .");
  CHECK(save_id_at(folder, 4) == "save4n2");
  CHECK(names_in(folder.step_path(4)) == ".metadata __0_0.distcp hyperion.json");
  CHECK(names_in(fixture.root) == "step-4");
}

TEST_CASE("an existing step is replaced where names cannot be exchanged") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root);
  arm_faults("point=file.rename;nth=1;action=errno:EINVAL", 0);
  save_checkpoint(folder, 4, CheckpointKind::kFull, 1);
  arm_faults("point=file.rename;nth=1;action=errno:EINVAL", 0);
  save_checkpoint(folder, 4, CheckpointKind::kFull, 2);
  CHECK(save_id_at(folder, 4) == "save4n2");
  CHECK(names_in(fixture.root) == "step-4");
  // ... and keeps its name when the new one cannot have it.
  arm_faults("point=file.rename;nth=1;action=errno:EINVAL,point=file.rename;nth=3;action=errno:EIO", 0);
  CHECK_THAT(failed_save([&] { save_checkpoint(folder, 4, CheckpointKind::kFull, 3); }),
             Catch::Contains("cannot get its name"));
  CHECK(save_id_at(folder, 4) == "save4n2");
  CHECK(names_in(fixture.root) == "step-4");
}

TEST_CASE("a folder that cannot be flushed leaves things as they were") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root / "run");
  save_checkpoint(folder, 4, CheckpointKind::kFull, 1);
  for (const int step : {4, 5}) {
    // Flushes: the shard, the index, the manifest; the parent at begin, the new folder, and the parent again.
    arm_faults("point=file.fsync;nth=6;action=errno:EIO", 0);
    CHECK_THAT(failed_save([&] { save_checkpoint(folder, step, CheckpointKind::kFull, 2); }),
               Catch::Contains("(EIO)"));
    CHECK(save_id_at(folder, 4) == "save4n1");
    CHECK(names_in(folder.path()) == "step-4");
  }
}

TEST_CASE("a file with a step's name is never replaced") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root);
  std::ofstream(fixture.root / "step-7") << "mine";
  CHECK_THAT(failed_save([&] { save_checkpoint(folder, 7); }),
             Catch::Contains("step-7: exists and is no folder"));
  CHECK(slurp(fixture.root / "step-7") == "mine");
  CHECK(names_in(fixture.root) == "step-7");
}

TEST_CASE(
    "a kill before the commit leaves the previous checkpoint and a leftover that the next start "
    "removes") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root);
  save_checkpoint(folder, 1);
  for (const int step : {1, 2}) {
    const int status = in_child([&] {
      arm_faults("point=ckpt.before_commit;action=kill", 0);
      save_checkpoint(folder, step, CheckpointKind::kFull, 2);
    });
    CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    CHECK(save_id_at(folder, 1) == "save1n1");
    CHECK_FALSE(fs::exists(folder.step_path(2)));
    const FolderLock lock(fixture.root);
    CHECK(folder.clean_leftovers(lock) == 1);
    CHECK(names_in(fixture.root) == "step-1");
  }
}

TEST_CASE("a kill after the commit leaves the new checkpoint") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root);
  save_checkpoint(folder, 1);
  for (const int step : {1, 2}) {
    in_child([&] {
      arm_faults("point=ckpt.after_commit;action=kill", 0);
      save_checkpoint(folder, step, CheckpointKind::kFull, 2);
    });
    CHECK(save_id_at(folder, step) == fmt::format("save{}n2", step));
    const FolderLock lock(fixture.root);
    CHECK(folder.clean_leftovers(lock) == (step == 1));  // the one that was replaced
  }
  CHECK(names_in(fixture.root) == "step-1 step-2");
}

TEST_CASE("a kill while a checkpoint is removed leaves no half one under its name") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root);
  for (const int step : {1, 2, 3, 4}) save_checkpoint(folder, step);
  const int status = in_child([&] {
    arm_faults("point=purge.mid;action=kill", 0);
    folder.purge({.keep = 2});
  });
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  for (const StepFolder& one : folder.scan()) CHECK(save_id_at(folder, one.step) == one.manifest->save_id);
  CHECK_FALSE(fs::exists(folder.step_path(1)));
  CHECK(names_in(fixture.root).starts_with(".trash-"));
  const FolderLock lock(fixture.root);
  CHECK(folder.clean_leftovers(lock) == 1);
  save_checkpoint(folder, 5);
  folder.purge({.keep = 2, .newest = 5});
  CHECK(names_in(fixture.root) == "step-4 step-5");
}

TEST_CASE("folders that cannot hold checkpoints are refused by name") {
  StorageFixture fixture;
  std::ofstream(fixture.root / "file") << "x";
  fs::create_symlink("nowhere", fixture.root / "dangling");
  const auto why = [&](const fs::path& path) {
    return failed_save([&] { save_checkpoint(CheckpointFolder(fixture.root / path), 1); });
  };
  CHECK_THAT(why("file"), Catch::Contains("file: the folder cannot be made: it is not a folder"));
  CHECK_THAT(why("file/below"), Catch::Contains("(ENOTDIR)"));
  CHECK_THAT(why("dangling"), Catch::Contains("dangling: the folder cannot be made: it is a symbolic link"));
  CHECK_THAT(why(std::string(300, 'n')), Catch::Contains("(ENAMETOOLONG)"));
  fs::create_directory(fixture.root / "readonly");
  fs::permissions(fixture.root / "readonly", fs::perms::owner_read | fs::perms::owner_exec);
  if (::geteuid() != 0) CHECK_THAT(why("readonly/run"), Catch::Contains("(EACCES)"));
  fs::permissions(fixture.root / "readonly", fs::perms::owner_all);
}

TEST_CASE("missing parents are made and odd names work") {
  StorageFixture fixture;
  for (const char* name :
       {"a/b/c", "with space", "gr\xc3\xbc\xc3\x9f", "new\nline", "trailing/", "bad\xff\xfeutf8"}) {
    INFO(name);
    const CheckpointFolder folder(fixture.root / name);
    save_checkpoint(folder, 1);
    CHECK(save_id_at(folder, 1) == "save1n1");
    CHECK(folder.scan().size() == 1);
  }
  CHECK(printable("new\nline") == "new\\x0aline");
}

TEST_CASE("Ids of saves that another program would take for a checkpoint are refused") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root);
  for (const char* id : {"step-3", "", "../x", "a/b"}) CHECK_THROWS_AS(folder.incoming(id), Error);
}

TEST_CASE("Every rank may begin the same save") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root / "run");
  CHECK(folder.begin("one", false) == folder.begin("one", true));
  std::ofstream(fixture.root / "run" / ".incoming-file") << "x";
  CHECK_THAT(failed_save([&] { folder.begin("file", true); }), Catch::Contains("is no folder"));
}

TEST_CASE("a checkpoint that was moved aside for one that never came is renamed back at the next start") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root);
  save_checkpoint(folder, 4, CheckpointKind::kFull, 1);
  const int status = in_child([&] {
    // Names cannot be exchanged: the old one moves aside, and the kill comes before the new one has its name.
    arm_faults("point=file.rename;nth=1;action=errno:EINVAL,point=file.rename;nth=3;action=kill", 0);
    save_checkpoint(folder, 4, CheckpointKind::kFull, 2);
  });
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  CHECK_FALSE(fs::exists(folder.step_path(4)));
  const FolderLock lock(fixture.root);
  CHECK(folder.clean_leftovers(lock) == 1);  // the new one
  CHECK(names_in(fixture.root) == "step-4");
  CHECK(save_id_at(folder, 4) == "save4n1");
  // One whose successor is there goes.
  fs::create_directory(fixture.root / ".trash-replaced-4-.incoming-x");
  CHECK(folder.clean_leftovers(lock) == 1);
  CHECK(names_in(fixture.root) == "step-4");
}

TEST_CASE("files and links with the name of a step to be saved are found before it") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root / "run");
  CHECK_NOTHROW(folder.require_free_names(0, 10));  // there is no folder yet
  save_checkpoint(folder, 3);
  std::ofstream(folder.path() / "step-12") << "beyond the last";
  std::ofstream(folder.path() / "step-x") << "no step";
  CHECK_NOTHROW(folder.require_free_names(0, 10));
  std::ofstream(folder.step_path(7)) << "mine";
  CHECK_THAT(error_of(ExitCode::kPreCheckpoint, [&] { folder.require_free_names(0, 10); }),
             Catch::Contains("step-7: is no folder") && Catch::Contains("checkpoint of step 7"));
  CHECK_NOTHROW(folder.require_free_names(8, 10));
  fs::remove(folder.step_path(7));
  fs::create_directory_symlink("step-3", folder.step_path(8));
  CHECK_THAT(error_of(ExitCode::kPreCheckpoint, [&] { folder.require_free_names(0, 10); }),
             Catch::Contains("step-8: is a link"));
}

TEST_CASE("Leftovers are removed and everything else stays") {
  StorageFixture fixture;
  const CheckpointFolder folder(fixture.root);
  save_checkpoint(folder, 1);
  write_shard(folder.begin("old", true), "__0_0.distcp", "half");
  fs::create_directory(fixture.root / ".trash-12");
  fs::create_directory(fixture.root / ".other");
  std::ofstream(fixture.root / ".incoming-note") << "a file of somebody's";
  fs::create_directory_symlink("step-1", fixture.root / ".trash-link");
  const FolderLock lock(fixture.root);
  CHECK(folder.clean_leftovers(lock) == 2);
  CHECK(names_in(fixture.root) == ".incoming-note .other .trash-link step-1");
}

}  // namespace hyperion::checkpoint
