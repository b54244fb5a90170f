#include "base/log.h"

#include <catch2/catch.hpp>

#include "base/error.h"

using namespace hyperion;

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
