#include "base/progress.h"

#include <catch2/catch.hpp>

using hyperion::progress_line;

TEST_CASE("a progress line shows share and rate and time to go") {
  CHECK(progress_line("tokenize", 1'250'000'000, 2'500'000'000, "B", 45) ==
        "tokenize  50% 1.2G/2.5G B, 27.8M B/s, 0:45 to go");
  CHECK(progress_line("steps", 10, 10'000, "steps", 36) ==
        "steps   0% 10/10.0k steps, 0 steps/s, 9:59:24 to go");
  CHECK(progress_line("x", 0, 5, "B", 1) == "x   0% 0/5 B, 0 B/s, ? to go");
  CHECK(progress_line("x", 9, 5, "B", 1) == "x 100% 5/5 B, 5 B/s, 0:00 to go");
  CHECK(progress_line("x", 0, 0, "B", 0) == "x 100% 0/0 B, 0 B/s, ? to go");
}
