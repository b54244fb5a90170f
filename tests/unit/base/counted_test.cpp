#include "base/counted.h"

#include <catch2/catch.hpp>

namespace hyperion {

TEST_CASE("a number is grouped by thousands and its noun is plural unless there is one") {
  CHECK(format_count(999) == "999");
  CHECK(format_count(1234567) == "1,234,567");
  CHECK(counted(0, "file") == "0 files");
  CHECK(counted(1, "file") == "1 file");
  CHECK(counted(2000, "file") == "2,000 files");
  CHECK(counted(int64_t{1}, "entry", "entries") == "1 entry");
  CHECK(counted(size_t{2}, "entry", "entries") == "2 entries");
}

}  // namespace hyperion
