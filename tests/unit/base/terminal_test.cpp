#include "base/terminal.h"

#include <cstdlib>

#include <catch2/catch.hpp>
#include <pty.h>
#include <unistd.h>

namespace hyperion {

TEST_CASE("escape sequences are for terminals that are not dumb and without NO_COLOR") {
  int leader = -1, terminal = -1, pipes[2];
  REQUIRE(::openpty(&leader, &terminal, nullptr, nullptr, nullptr) == 0);
  REQUIRE(::pipe(pipes) == 0);
  ::setenv("TERM", "xterm-256color", 1);
  ::unsetenv("NO_COLOR");
  CHECK(terminal_escapes(terminal));
  CHECK_FALSE(terminal_escapes(pipes[1]));

  ::setenv("NO_COLOR", "", 1);
  CHECK(terminal_escapes(terminal));
  ::setenv("NO_COLOR", "1", 1);
  CHECK_FALSE(terminal_escapes(terminal));
  ::unsetenv("NO_COLOR");

  ::setenv("TERM", "dumb", 1);
  CHECK_FALSE(terminal_escapes(terminal));
  ::unsetenv("TERM");
  CHECK_FALSE(terminal_escapes(terminal));
  ::setenv("TERM", "xterm-256color", 1);

  disable_terminal_escapes();
  CHECK_FALSE(terminal_escapes(terminal));
  for (const int fd : {leader, terminal, pipes[0], pipes[1]}) ::close(fd);
}

}  // namespace hyperion
