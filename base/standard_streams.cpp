#include "base/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <initializer_list>

#include "base/durable.h"
#include "base/error.h"

namespace hyperion {

void keep_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    const int opened = ::open("/dev/null", O_RDWR);  // the lowest number that is free: this one
    if (opened >= 0 && opened != fd) ::close(opened);
  }
}

void ignore_closed_pipe() {
  std::signal(SIGPIPE, SIG_IGN);
}

void print_text(std::string_view text) {
  const bool whole = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  flush_stdout(whole ? 0 : errno);
}

void flush_stdout(int earlier_error) {
  const bool failed_before = std::ferror(stdout) != 0;
  if (std::fflush(stdout) != 0)
    earlier_error = errno;
  else if (!failed_before)
    return;
  throw Error(ExitCode::kSaveFailed,
              fmt::format("standard output cannot be written{}; what it got is not complete",
                          earlier_error != 0 ? ": " + errno_text(earlier_error)
                                             : std::string(", an earlier write failed")));
}

}  // namespace hyperion
