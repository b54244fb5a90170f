#include "base/progress.h"

#include <sstream>

#include <catch2/catch.hpp>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

namespace hyperion {

TEST_CASE("a progress line shows share and rate and time to go") {
  CHECK(progress_line("tokenize", 1'250'000'000, 2'500'000'000, "B", 45) ==
        "tokenize  50% 1.2G/2.5G B, 0:45 to go, 27.8M B/s");
  CHECK(progress_line("steps", 10, 10'000, "steps", 36) ==
        "steps   0% 10/10.0k steps, 9:59:24 to go, 0 steps/s");
  CHECK(progress_line("x", 0, 5, "B", 1) == "x   0% 0/5 B, ? to go, 0 B/s");
  CHECK(progress_line("x", 9, 5, "B", 1) == "x 100% 5/5 B, 0:00 to go, 5 B/s");
  CHECK(progress_line("eval", 1'200'000, 0, "tokens", 40) == "eval 1.2M tokens, 30.0k tokens/s");
  CHECK(progress_line("x", 0, 0, "B", 0) == "x 0 B, 0 B/s");
}

TEST_CASE("off a terminal progress is a log line at intervals and none for short work") {
  ::setenv("NO_COLOR", "1", 1);  // whatever runs this test
  std::ostringstream text;
  const auto former = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text)));
  {
    using std::chrono::seconds;
    const auto before = Progress::Clock::now();
    Progress brief("brief", 100, "B"), work("loading", 100, "B", seconds(20));
    const auto after = Progress::Clock::now();
    brief.update(100, before + seconds(9));
    work.update(10, before + seconds(19));
    work.update(50, after + seconds(20));
    work.update(60, after + seconds(39));
    work.update(70, after + seconds(40));
  }
  spdlog::default_logger()->set_level(spdlog::level::err);  // a rank that LOG_RANK leaves out
  Progress silent("silent", 100, "B", std::chrono::milliseconds(0));
  silent.update(50);
  spdlog::set_default_logger(former);
  ::unsetenv("NO_COLOR");
  const std::string lines = text.str();
  CHECK_THAT(lines, Catch::Contains("loading  50% 50/100 B") && Catch::Contains("loading  70% 70/100 B"));
  CHECK(std::count(lines.begin(), lines.end(), '\n') == 2);
}

}  // namespace hyperion
