#include "trainer/runtime/signals.h"

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

const char* name_of(int signal) {
  return signal == SIGINT ? "Ctrl-C" : signal == SIGTERM ? "TERM" : "USR1";
}

// Builds a line with async-signal-safe calls only.
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

// "[hyperion] TERM received ...", when signals are acknowledged.
template <typename... Parts>
void answer(int signal, const Parts&... parts) {
  if (!acknowledges) return;
  Line line;
  line.add("[hyperion] ");
  line.add(name_of(signal));
  line.add(" received");
  (line.add(parts), ...);
  line.write();
}

[[noreturn]] void end_process(int signal) {
  ::_exit(static_cast<int>(signal == SIGINT ? ExitCode::kInterrupted : ExitCode::kTerminated));
}

extern "C" void on_signal_while_starting(int signal) {
  answer(signal, " while the job was starting: it ends, and no step was made\n");
  const int error = errno;
  const int pipe = end_of_start.exchange(-1);
  const auto number = static_cast<unsigned char>(signal);
  if (pipe < 0 || ::write(pipe, &number, 1) != 1) end_process(signal);
  errno = error;
}

extern "C" void on_signal_in_training(int signal) {
  const int error = errno;
  int none = 0;
  const bool first = first_signal.compare_exchange_strong(none, signal);
  if (!first && signal != SIGUSR1) end_process(signal);
  if (first) {
    const int64_t step = running_step, last = last_step;
    const char* end = signal == SIGUSR1 ? "\n" : " (a second one ends the job at once)\n";
    if (step < 0)
      answer(signal, ": stopping before the first step", end);
    else if (last <= step)
      answer(signal, " in step ", step, ": stopping after it", end);
    else
      answer(signal, " in step ", step, ": stopping after step ", last, " at the latest", end);
  }
  errno = error;
}

extern "C" void on_signal_in_dry_run(int signal) {
  answer(signal, " in step ", running_step.load(),
         " of a dry run: it ends at once, as it has nothing to save\n");
  end_process(signal);
}

}  // namespace

void handle_stop_signals(SignalPhase phase, bool acknowledge) {
  acknowledges = acknowledge;
  struct sigaction action {};
  action.sa_handler = phase == SignalPhase::kStart    ? on_signal_while_starting
                      : phase == SignalPhase::kDryRun ? on_signal_in_dry_run
                                                      : on_signal_in_training;
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) ::sigaction(signal, &action, nullptr);
}

void block_warning(bool block) {
  sigset_t warning;
  ::sigemptyset(&warning);
  ::sigaddset(&warning, SIGUSR1);
  ::pthread_sigmask(block ? SIG_BLOCK : SIG_UNBLOCK, &warning, nullptr);
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

void set_running_step(int64_t step, int64_t last) {
  last_step = last;
  running_step = step;
}

StopSignal stop_signal() {
  const int signal = first_signal;
  if (signal == 0) return StopSignal::kNone;
  return signal == SIGINT ? StopSignal::kInterrupt : StopSignal::kTerminate;
}

}  // namespace hyperion::trainer
