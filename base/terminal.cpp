#include "base/terminal.h"

#include <atomic>
#include <string>

#include <unistd.h>

#include "base/process.h"

namespace hyperion {
namespace {

std::atomic<bool> disabled = false;

}  // namespace

bool terminal_escapes(int fd) {
  const std::string term = environment_variable("TERM").value_or("");
  return !disabled && environment_variable("NO_COLOR").value_or("").empty() && !term.empty() &&
         term != "dumb" && ::isatty(fd) == 1;
}

void disable_terminal_escapes() {
  disabled = true;
}

}  // namespace hyperion
