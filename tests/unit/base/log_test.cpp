#include "base/log.h"

#include <memory>
#include <sstream>

#include <catch2/catch.hpp>
#include <spdlog/sinks/ostream_sink.h>

#include "base/error.h"

namespace hyperion {

TEST_CASE("LOG_RANK names the ranks that print") {
  CHECK(rank_prints(0, ""));
  CHECK_FALSE(rank_prints(1, ""));
  CHECK(rank_prints(3, "0,3"));
  CHECK(rank_prints(0, "0,3"));
  CHECK_FALSE(rank_prints(1, "0,3,11"));
  for (const char* bad : {"a", "1,", ",1", "1;2", "-1", "1 ", "99999999999"}) {
    CAPTURE(bad);
    CHECK_THROWS_WITH(rank_prints(0, bad), Catch::Contains("LOG_RANK") && Catch::Contains(bad));
  }
}

TEST_CASE("control bytes in a message are written out and only our own lines have colours") {
  const auto before = spdlog::default_logger();
  std::ostringstream out;
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(out)));
  spdlog::default_logger()->set_pattern("%v");
  log_info("{}", "name\x1b[31m\r\n\tnext line");
  log_warning("{}", "bell\a");
  log_coloured("\x1b[31mstep\x1b[39m");
  spdlog::set_default_logger(before);
  CHECK(out.str() == "name\\x1b[31m\\x0d\n\tnext line\nbell\\x07\n\x1b[31mstep\x1b[39m\n");
}

}  // namespace hyperion
