#include "app/monitor/screen.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/error.h"

namespace hyperion::monitor {
namespace {

constexpr std::string_view kEnter =
    "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";  // other buffer, no cursor, no wrap
constexpr std::string_view kLeave = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

constexpr int kWriteMilliseconds = 200;  // for a terminal that takes no bytes
constexpr std::array kEnding = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr std::array kRedrawing = {SIGWINCH, SIGTSTP, SIGCONT};
constexpr std::array kFatal = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};

// Signal handlers use the following; all of it is async-signal-safe.
volatile std::sig_atomic_t entered = 0, has_settings = 0, ending_signal = 0, stop_asked = 0;
termios settings_before{};
int wake_up = -1;  // write end of a pipe

void put(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      pollfd terminal{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
      if (::poll(&terminal, 1, kWriteMilliseconds) > 0) continue;
    }
    if (n <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void leave() {
  if (entered == 0) return;
  entered = 0;
  put(kLeave);
  if (has_settings != 0) ::tcsetattr(STDIN_FILENO, TCSANOW, &settings_before);
}

void end_by(int number) {
  leave();
  std::signal(number, SIG_DFL);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, number);
  ::sigprocmask(SIG_UNBLOCK, &only, nullptr);
  ::raise(number);
}

// The second of these signals ends the process at once: a read may hang.
void on_ending(int number) {
  const int error = errno;
  if (ending_signal != 0) end_by(number);
  ending_signal = number;
  static_cast<void>(::write(wake_up, "e", 1) == 1);
  errno = error;
}

void on_redrawing(int number) {
  const int error = errno;
  if (number == SIGTSTP) stop_asked = 1;
  static_cast<void>(::write(wake_up, "r", 1) == 1);
  errno = error;
}

}  // namespace

// The handlers that were there before, and the pipe by which ours wake wait() up.
struct Screen::Signals {
  std::vector<std::pair<int, struct sigaction>> before{};
  Descriptor read_end{}, write_end{};

  Signals() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
      throw Error(ExitCode::kResources, "monitor: no pipe: " + errno_text(errno));
    read_end = Descriptor(ends[0]);
    write_end = Descriptor(ends[1]);
    wake_up = ends[1];
    ending_signal = 0;
    for (const int number : kEnding) handle(number, on_ending);
    for (const int number : kRedrawing) handle(number, on_redrawing);
    for (const int number : kFatal) handle(number, end_by);
  }
  ~Signals() {
    for (const auto& [number, action] : before) ::sigaction(number, &action, nullptr);
    wake_up = -1;
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  void handle(int number, void (*handler)(int)) {
    struct sigaction ours {
    }, old{};
    ours.sa_handler = handler;  // without SA_RESTART: a write to a terminal that takes nothing ends
    sigfillset(&ours.sa_mask);
    ::sigaction(number, &ours, &old);
    before.emplace_back(number, old);
  }
};

Screen::Screen() : signals_(std::make_unique<Signals>()), keys_(::isatty(STDIN_FILENO) == 1) {
  enter();
}

Screen::~Screen() {
  leave();
}

void Screen::enter() {
  has_settings = keys_ && ::tcgetattr(STDIN_FILENO, &settings_before) == 0;
  entered = 1;  // first: a signal from here on gives everything back
  if (has_settings != 0) {
    termios settings = settings_before;
    settings.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // Ctrl-C and Ctrl-Z stay signals
    settings.c_cc[VMIN] = 1;
    settings.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &settings);
  }
  put(kEnter);
}

Screen::Size Screen::size() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {size.ws_col, size.ws_row};
}

int Screen::signal_that_came() {
  return ending_signal;
}

void Screen::write(const std::string& bytes) {
  std::string_view left = bytes;
  while (!left.empty() && ending_signal == 0) {
    const ssize_t n = ::write(STDOUT_FILENO, left.data(), left.size());
    if (n >= 0) {
      left.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      pollfd ready = {STDOUT_FILENO, POLLOUT, 0};
      ::poll(&ready, 1, 1000);
    } else if (errno != EINTR) {
      throw_save_failed("monitor: cannot write to the terminal: {}", errno_text(errno));
    }
  }
}

Screen::Event Screen::wait(double seconds) {
  std::array<pollfd, 2> sources = {pollfd{signals_->read_end.get(), POLLIN, 0},
                                   pollfd{keys_ ? STDIN_FILENO : -1, POLLIN, 0}};
  if (ending_signal != 0) return Event::kInterrupted;
  const int ready =
      ::poll(sources.data(), sources.size(), static_cast<int>(std::ceil(std::min(seconds, 86400.0) * 1000)));
  if (ready < 0 && errno != EINTR) throw_bug("monitor: poll: {}", errno_text(errno));
  if (ready <= 0)
    return ending_signal != 0 ? Event::kInterrupted : ready < 0 ? Event::kRedraw : Event::kTimeout;
  return sources[0].revents != 0 ? handle_signals() : read_keys();
}

Screen::Event Screen::handle_signals() {
  std::array<char, 64> bytes{};
  while (::read(signals_->read_end.get(), bytes.data(), bytes.size()) > 0) continue;
  if (ending_signal != 0) return Event::kInterrupted;
  if (stop_asked != 0) {
    stop_asked = 0;
    leave();
    struct sigaction ours {
    }, by_default{};
    by_default.sa_handler = SIG_DFL;
    ::sigaction(SIGTSTP, &by_default, &ours);
    ::raise(SIGTSTP);  // and here it goes on after SIGCONT
    ::sigaction(SIGTSTP, &ours, nullptr);
    enter();
  }
  return Event::kRedraw;
}

Screen::Event Screen::read_keys() {
  std::array<char, 256> keys{};
  const ssize_t n = ::read(STDIN_FILENO, keys.data(), keys.size());
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return Event::kIgnored;
  if (n <= 0) return Event::kQuit;
  constexpr std::string_view kQuitKeys = "qQ\x04";
  const std::string_view pressed(keys.data(), static_cast<size_t>(n));
  return pressed.find_first_of(kQuitKeys) == pressed.npos ? Event::kIgnored : Event::kQuit;
}

}  // namespace hyperion::monitor
