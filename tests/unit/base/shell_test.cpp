#include "base/shell.h"

#include <catch2/catch.hpp>

namespace hyperion {

TEST_CASE("Shell quoting survives blanks quotes and empty arguments") {
  CHECK(shell_command({"a", "b c", "", "it's", "$HOME", "--x=1,2"}) ==
        "a 'b c' '' 'it'\\''s' '$HOME' --x=1,2");
}

}  // namespace hyperion
