#include "trainer/runtime/batch_job.h"

#include <filesystem>

#include <catch2/catch.hpp>

#include "base/files.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace hyperion::trainer {
namespace {

// A variable of the environment for the length of a scope.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

}  // namespace

TEST_CASE("a time limit's warning that comes too late for a step and a save is named with the remedy") {
  SaveTimes times{.step_seconds = 20, .save_seconds = 101, .interval = 1000, .lead = 120};
  const auto warnings = save_time_warnings(times);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0] ==
        "a stop before the time limit may take 121 s (a step of 20.0 s and a save of 101.0 s), but the "
        "warning signal "
        "comes 120 s before the limit: give sbatch --signal=USR1@182, and the same number as "
        "HYPERION_SIGNAL_LEAD");
  times.save_seconds = 100;
  CHECK(save_time_warnings(times).empty());
  times.background = true;  // one may be under way
  REQUIRE(save_time_warnings(times).size() == 1);
  CHECK_THAT(save_time_warnings(times)[0], Catch::Contains("may take 220 s"));
  times.lead.reset();
  CHECK(save_time_warnings(times).empty());
}

TEST_CASE("saves that follow each other too closely are named with an interval that suffices") {
  const auto sole = [](const SaveTimes& times) {
    const auto warnings = save_time_warnings(times);
    return warnings.size() == 1 ? warnings[0] : fmt::format("{} warnings", warnings.size());
  };
  CHECK_THAT(sole({.step_seconds = 1, .save_seconds = 30, .interval = 100}),
             Catch::Contains("saves will take 23 % of the time") &&
                 Catch::Contains("raise checkpoint.interval to 300 or more"));
  CHECK(sole({.step_seconds = 1, .save_seconds = 30, .interval = 300}) == "0 warnings");
  CHECK(sole({.step_seconds = 1, .save_seconds = 30, .interval = 100, .background = true}) == "0 warnings");
  CHECK_THAT(sole({.step_seconds = 1, .save_seconds = 30, .interval = 20, .background = true}),
             Catch::Contains("longer than the 20.0 s of the 20 steps") && Catch::Contains("to 30 or more"));
}

TEST_CASE("the lead of the warning signal is a whole number of seconds") {
  CHECK_FALSE(signal_lead());
  CHECK((Variable("HYPERION_SIGNAL_LEAD", "120"), signal_lead()) == 120);
  CHECK_FALSE((Variable("HYPERION_SIGNAL_LEAD", ""), signal_lead()));
  for (const char* bad : {"two", "-1", "1.5", "120s"}) {
    const Variable variable("HYPERION_SIGNAL_LEAD", bad);
    CHECK_THAT(error_of(ExitCode::kUsage, [] { signal_lead(); }),
               Catch::Contains("HYPERION_SIGNAL_LEAD") && Catch::Contains(bad));
  }
}

TEST_CASE("the progress file tells the step of the start and the newest one saved") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "progress";
  {
    const Variable variable("HYPERION_PROGRESS_FILE", path.string());
    const ProgressFile progress(40);
    CHECK(read_file(path) == "40 40\n");
    progress.saved(60);
    CHECK(read_file(path) == "40 60\n");
  }
  std::filesystem::remove(path);
  ProgressFile(40).saved(60);  // nobody asked
  CHECK_FALSE(std::filesystem::exists(path));
  const Variable variable("HYPERION_PROGRESS_FILE", "/no/such/folder/file");
  ProgressFile(40).saved(60);  // is logged
}

}  // namespace hyperion::trainer
