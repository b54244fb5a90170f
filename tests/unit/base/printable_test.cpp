#include "base/printable.h"

#include <catch2/catch.hpp>

namespace hyperion {

TEST_CASE("control bytes are written out in paths and messages") {
  CHECK(printable("a\x1b[31mb\n\x7f") == "a\\x1b[31mb\\x0a\\x7f");
  CHECK(escape_control_bytes("one\n\ttwo\r\x1b]0;title\a", "\n\t") == "one\n\ttwo\\x0d\\x1b]0;title\\x07");
  CHECK(escape_control_bytes("\xC2\x9B"
                             "31m \xC3\xA9 \xE2\x9C\x93") == "\\x9b31m \xC3\xA9 \xE2\x9C\x93");
}

TEST_CASE("a long text is cut between characters and a path is never cut") {
  CHECK(printable(std::string(119, 'x') + "\xc3\xa9y") == std::string(119, 'x') + "\xc3\xa9...");
  CHECK(printable("abcdef", 3) == "abc...");
  const std::string name(500, 'x');
  CHECK(printable(name).size() < 140);
  CHECK(printable(std::filesystem::path(name)) == name);
}

}  // namespace hyperion
