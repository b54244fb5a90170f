// An action that may end its process.
#pragma once

#include <functional>

#include <sys/wait.h>
#include <unistd.h>

namespace hyperion {

// Runs `action` in a process of its own; returns its wait status. The action's failure is exit code 1.
inline int in_child(const std::function<void()>& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      action();
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

}  // namespace hyperion
