#include "base/standard_streams.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <iostream>
#include <streambuf>

#include <fcntl.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/error.h"
#include "base/printable.h"

namespace hyperion {
namespace {

// libtorch writes a message in one piece.
class FrameFilter : public std::streambuf {
 public:
  explicit FrameFilter(std::streambuf* target) : target_(target) {}

 private:
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    const std::string kept = without_stack_frames({text, static_cast<size_t>(size)});
    const auto length = static_cast<std::streamsize>(kept.size());
    return target_->sputn(kept.data(), length) == length ? size : 0;
  }
  int_type overflow(int_type c) override {
    return traits_type::eq_int_type(c, traits_type::eof()) ? traits_type::not_eof(c)
                                                           : target_->sputc(traits_type::to_char_type(c));
  }
  int sync() override { return target_->pubsync(); }

  std::streambuf* target_;
};

}  // namespace

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
  const bool complete = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  flush_stdout(complete ? 0 : errno);
}

void print_outside_text(std::string_view text) {
  if (::isatty(STDOUT_FILENO) == 1)
    print_text(escape_control_bytes(text, "\n\t"));
  else
    print_text(text);
}

void flush_stdout(int earlier_error) {
  const bool failed_before = std::ferror(stdout) != 0;
  if (std::fflush(stdout) != 0)
    earlier_error = errno;
  else if (!failed_before)
    return;
  throw_save_failed(
      "standard output cannot be written{}; what it got is not complete",
      earlier_error != 0 ? ": " + errno_text(earlier_error) : std::string(", an earlier write failed"));
}

std::string without_stack_frames(std::string_view text) {
  std::string kept;
  bool in_frames = false;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end);
    const bool frame = line.starts_with("Exception raised from ") || line.starts_with("frame #");
    if (!frame && !(in_frames && line == "\n")) kept += line;  // an empty line ends the frames
    in_frames = frame;
  }
  return kept;
}

void drop_stack_frames_from_cerr() {
  const char* wanted = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (wanted != nullptr && std::string_view(wanted) == "1") return;
  static auto* filter = new FrameFilter(std::cerr.rdbuf());  // never destroyed: std::cerr outlives main()
  std::cerr.rdbuf(filter);
}

}  // namespace hyperion
