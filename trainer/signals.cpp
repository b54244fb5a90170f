#include "trainer/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "base/error.h"

namespace hyperion {
namespace {

std::atomic<int> first_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only touch lock-free atomics");

extern "C" void on_stop_signal(int signal) {
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal) || signal == SIGUSR1) return;
  ::_exit(static_cast<int>(signal == SIGINT ? ExitCode::kInterrupted : ExitCode::kTerminated));
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) ::sigaction(signal, &action, nullptr);
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

}  // namespace hyperion
