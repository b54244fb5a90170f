#include "trainer/metrics/run_folder.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/files.h"
#include "tests/support/temporary_folder.h"

namespace hyperion::trainer {

TEST_CASE("A run record holds configuration and command and never replaces an earlier one") {
  test::TemporaryFolder folder;
  RunRecord record;
  record.resolved_toml = "[training]\nsteps = 5\n";
  record.command = {"build/hyperion", "train", "a b.toml", "--training.steps=5"};
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
  CHECK_THAT(text, Catch::Contains("libtorch 2.11.0"));
}

TEST_CASE("The source commit is a full hash or unknown") {
  const std::string commit = source_commit();
  CHECK((commit == "unknown" || commit.size() == 40));
}

TEST_CASE("A dump folder that cannot be made is an error that names it") {
  CHECK_THROWS_WITH(write_run_record("/proc/none", {}), Catch::Contains("/proc/none"));
}

}  // namespace hyperion::trainer
