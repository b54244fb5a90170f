#include "app/report/run_record.h"

#include <fstream>

#include <catch2/catch.hpp>

#include "tests/support/temporary_folder.h"

namespace hyperion::report {

TEST_CASE("Settings are read as hyperion config prints them") {
  const Settings settings = parse_settings(R"([job]
description = "a # b \" = c"                      # run.toml:2
# config_file is not set                          # default

[training.dataloader]
num_workers = 0                                   # default
[lists]
converters = ["a", "b#c"]                         # command line
broken line
 = 3
[also "broken
)");
  CHECK(settings == Settings{{"job.description", R"("a # b \" = c")"},
                             {"training.dataloader.num_workers", "0"},
                             {"lists.converters", R"(["a", "b#c"])"}});
}

TEST_CASE("Settings that differ are listed with a value per run") {
  const Settings a = {{"x", "1"}, {"same", "0"}, {"only", "2"}}, b = {{"x", "3"}, {"same", "0"}};
  CHECK(differences({&a, &b}) ==
        std::map<std::string, std::vector<std::string>>{{"only", {"2", ""}}, {"x", {"1", "3"}}});
}

TEST_CASE("The starts of a run are read in order and a record that cannot be read is said") {
  const test::TemporaryFolder folder;
  CHECK(read_run_starts(folder.path() / "none").starts.empty());
  CHECK(read_run_starts(folder.path() / "none").problems.empty());
  for (const char* name : {"20260102-000000", "20260101-000000", "20260103-000000"}) {
    std::filesystem::create_directories(folder.path() / name);
    std::ofstream(folder.path() / name / "config.toml") << "[training]\nsteps = 5\n";
    std::ofstream(folder.path() / name / "run.txt")
        << "command: hyperion train x: y\nhost:    h\n\nhost: no\n";
  }
  std::filesystem::remove(folder.path() / "20260103-000000" / "config.toml");
  std::filesystem::create_directory(folder.path() / "20260103-000000" / "config.toml");
  const RunStarts starts = read_run_starts(folder.path());
  REQUIRE(starts.starts.size() == 3);
  CHECK(starts.starts[0].name == "20260101-000000");
  CHECK(starts.starts[0].settings.at("training.steps") == "5");
  CHECK(starts.starts[0].fields.at("command") == "hyperion train x: y");
  CHECK(starts.starts[0].fields.at("host") == "h");
  CHECK(starts.starts[0].number("training.steps") == 5);
  CHECK_FALSE(starts.starts[2].number("training.steps"));
  CHECK(starts.newest_record.empty());  // it could not be read
  std::filesystem::remove_all(folder.path() / "20260103-000000");
  CHECK(read_run_starts(folder.path()).newest_record ==
        "command: hyperion train x: y\nhost:    h\n\nhost: no\n\n[training]\nsteps = 5\n");
  REQUIRE(starts.problems.size() == 1);
  CHECK_THAT(starts.problems[0], Catch::Contains("20260103-000000"));
}

}  // namespace hyperion::report
