#include "base/terminal.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

#include <unistd.h>

namespace hyperion {
namespace {

std::atomic<bool> disabled = false;

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

bool terminal_escapes(int fd) {
  const std::string_view term = variable("TERM");
  return !disabled && variable("NO_COLOR").empty() && !term.empty() && term != "dumb" && ::isatty(fd) == 1;
}

void disable_terminal_escapes() {
  disabled = true;
}

}  // namespace hyperion
