#include "trainer/signals.h"

#include <atomic>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/error.h"

namespace hyperion::trainer {
namespace {

std::atomic<int> first_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only touch lock-free atomics");

std::atomic<bool> acknowledges{false};
std::atomic<int64_t> running_step{-1}, last_step{-1};
std::atomic<int> end_of_start{-1};  // the pipe to BeforeEndBySignal's thread, once

// A line, made of what a signal handler may use.
class Line {
 public:
  void add(std::string_view text) {
    for (const char c : text)
      if (size_ < sizeof text_) text_[size_++] = c;
  }
  void add(int64_t number) {
    char digits[20];
    add(std::string_view(digits, std::to_chars(digits, digits + sizeof digits, number).ptr));
  }
  void write() const { [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, text_, size_); }

 private:
  char text_[160];
  size_t size_ = 0;
};

const char* name_of(int signal) {
  return signal == SIGINT ? "Ctrl-C" : signal == SIGTERM ? "TERM" : "USR1";
}

Line received(int signal) {
  Line line;
  line.add("[hyperion] ");
  line.add(name_of(signal));
  line.add(" received");
  return line;
}

[[noreturn]] void end_process(int signal) {
  ::_exit(static_cast<int>(signal == SIGINT ? ExitCode::kInterrupted : ExitCode::kTerminated));
}

extern "C" void on_signal_while_starting(int signal) {
  if (acknowledges) {
    Line line = received(signal);
    line.add(" while the job was starting: it ends, and no step was made\n");
    line.write();
  }
  const int error = errno;
  const int pipe = end_of_start.exchange(-1);
  const auto number = static_cast<unsigned char>(signal);
  if (pipe < 0 || ::write(pipe, &number, 1) != 1) end_process(signal);
  errno = error;
}

void acknowledge(int signal) {
  const int64_t step = running_step.load(), last = last_step.load();
  Line line = received(signal);
  if (step >= 0) {
    line.add(" in step ");
    line.add(step);
  }
  if (step < 0) {
    line.add(": stopping before the first step");
  } else if (last <= step) {
    line.add(": stopping after it");
  } else {
    line.add(": stopping after step ");
    line.add(last);
    line.add(" at the latest");
  }
  line.add(signal == SIGUSR1 ? "\n" : " (a second one ends the job at once)\n");
  line.write();
}

extern "C" void on_stop_signal(int signal) {
  const int error = errno;
  int none = 0;
  const bool first = first_signal.compare_exchange_strong(none, signal);
  if (first && acknowledges) acknowledge(signal);
  errno = error;
  if (!first && signal != SIGUSR1) end_process(signal);
}

extern "C" void on_signal_in_dry_run(int signal) {
  if (acknowledges) {
    Line line = received(signal);
    line.add(" in step ");
    line.add(running_step);
    line.add(" of a dry run: it ends at once, as it has nothing to save\n");
    line.write();
  }
  end_process(signal);
}

void install(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) ::sigaction(signal, &action, nullptr);
}

}  // namespace

void end_on_stop_signals(bool acknowledge) {
  acknowledges = acknowledge;
  install(on_signal_while_starting);
}

BeforeEndBySignal::BeforeEndBySignal(std::function<void(const std::string& signal)> act) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw std::system_error(errno, std::generic_category(), "a pipe for signals");
  Descriptor read_end(ends[0]), write_end(ends[1]);
  thread_ = std::thread([act = std::move(act), from = std::move(read_end)] {
    unsigned char signal = 0;
    ssize_t count = 0;
    do count = ::read(from.get(), &signal, 1);
    while (count < 0 && errno == EINTR);
    if (count != 1) return;
    act(name_of(signal));
    end_process(signal);
  });
  end_of_start = write_end_ = write_end.release();
}

BeforeEndBySignal::~BeforeEndBySignal() {
  const bool unused = end_of_start.exchange(-1) >= 0;
  ::close(write_end_);
  unused ? thread_.join() : thread_.detach();  // which is ending the process
}

void catch_stop_signals(bool acknowledge) {
  acknowledges = acknowledge;
  install(on_stop_signal);
}

void end_dry_run_on_stop_signals(bool acknowledge) {
  acknowledges = acknowledge;
  install(on_signal_in_dry_run);
}

void set_running_step(int64_t step, int64_t last) {
  last_step = last;
  running_step = step;
}

StopSignal stop_signal() {
  switch (first_signal.load()) {
    case 0:
      return StopSignal::kNone;
    case SIGINT:
      return StopSignal::kInterrupt;
    default:
      return StopSignal::kTerminate;
  }
}

}  // namespace hyperion::trainer
