#include "trainer/metrics/run_folder.h"

#include <chrono>
#include <cstdlib>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/files.h"
#include "tests/support/temporary_folder.h"

namespace hyperion::metrics {

TEST_CASE("A run record holds configuration and command and never replaces an earlier one") {
  test::TemporaryFolder folder;
  RunRecord record;
  record.resolved_toml = "[training]\nsteps = 5\n";
  record.command = {"build/hyperion", "train", "a b.toml", "--training.steps=5"};
  record.config_file = "a b.toml";
  record.devices = "4 x NVIDIA H100 80GB HBM3";
  record.versions = "libtorch 2.11.0";
  record.world_size = 4;
  record.start_time = 1771588800;
  const auto first = write_run_record(folder.path() / "out", record);
  record.resolved_toml = "other";
  const auto second = write_run_record(folder.path() / "out", record);

  CHECK(first.parent_path() == folder.path() / "out" / "runs");
  CHECK(second == std::filesystem::path(first.string() + "-2"));
  CHECK(read_file(first / "config.toml") == "[training]\nsteps = 5\n");
  CHECK(read_file(second / "config.toml") == "other");
  const std::string text = read_file(first / "run.txt");
  CHECK_THAT(text, Catch::StartsWith("command: build/hyperion train 'a b.toml' --training.steps=5\n"));
  CHECK_THAT(text, Catch::Contains("ranks:   4\n"));
  CHECK_THAT(text, Catch::Contains("commit:  " + source_commit() + "\n"));
  CHECK_THAT(text, Catch::Contains("devices: 4 x NVIDIA H100 80GB HBM3\n"));
  CHECK_THAT(text, Catch::Contains("config:  a b.toml, unknown to git\n"));
  CHECK_THAT(text, Catch::Contains("libtorch 2.11.0"));
}

TEST_CASE("A run's record says how the configuration's file differs from the git commit") {
  test::TemporaryFolder folder;
  const auto file = folder.path() / "a 'b'.toml", link = folder.path() / "link.toml";
  write_file_atomic(file, "[training]\n");
  const auto state = [](const std::filesystem::path& path) {
    return git_state(path, std::chrono::minutes(1));  // on a busy host, too
  };
  // neither the repository of a hook that runs the tests, nor one that the temporary folders are in
  for (const char* name :
       {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"})
    ::unsetenv(name);
  ::setenv("GIT_CEILING_DIRECTORIES", folder.path().parent_path().c_str(), 1);
  CHECK(state(file) == "unknown to git");
  CHECK(state(folder.path() / "absent.toml") == "unknown to git");
  const auto git = [&](const std::string& arguments) {
    return std::system(("git -C '" + folder.path().string() +
                        "' -c user.name=a -c user.email=b -c commit.gpgsign=false " + arguments +
                        " >/dev/null 2>&1")
                           .c_str());
  };
  if (git("init") != 0) {
    WARN("no git here: only its absence was tested");
    return;
  }
  CHECK(state(file) == "not in git commit (initial)");
  CHECK(git("add .") == 0);
  CHECK(git("commit -m x") == 0);
  std::filesystem::create_symlink(file, link);
  for (const auto& path : {file, link})
    CHECK_THAT(state(path), Catch::Matches("as in git commit [0-9a-f]{40}"));

  // as within a hook of another repository
  ::setenv("GIT_DIR", (folder.path() / "other").c_str(), 1);
  ::setenv("GIT_WORK_TREE", folder.path().parent_path().c_str(), 1);
  ::setenv("GIT_INDEX_FILE", (folder.path() / "index").c_str(), 1);
  const std::string within_a_hook = state(file);
  for (const char* name : {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"}) ::unsetenv(name);
  CHECK_THAT(within_a_hook, Catch::StartsWith("as in git commit "));

  write_file_atomic(file, "[other]\n");
  CHECK_THAT(state(link), Catch::Matches("changed since git commit [0-9a-f]{40}"));
  write_file_atomic(folder.path() / ".gitignore", "*.toml\n");
  write_file_atomic(folder.path() / "ignored.toml", "");
  CHECK_THAT(state(folder.path() / "ignored.toml"), Catch::Matches("not in git commit [0-9a-f]{40}"));
  CHECK_THAT(state(file), Catch::StartsWith("changed since"));
}

TEST_CASE("The source commit is a full hash or unknown") {
  const std::string commit = source_commit();
  CHECK((commit == "unknown" || commit.size() == 40));
}

TEST_CASE("A dump folder that cannot be made is an error that names it") {
  CHECK_THROWS_WITH(write_run_record("/proc/none", {}), Catch::Contains("/proc/none"));
}

}  // namespace hyperion::metrics
