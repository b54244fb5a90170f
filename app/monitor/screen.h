// Screen is the terminal of this process while it shows a view: another screen buffer, no cursor, keys that
// are read at once. Whatever ends the process, but KILL, gives the terminal back as it was.
#pragma once

#include <memory>
#include <string>

namespace hyperion::monitor {

class Screen {
 public:
  enum class Event { kTimeout, kIgnored, kRedraw, kQuit, kInterrupted };

  // stdout must be a terminal; keys are read if stdin is one. At most one lives at a time.
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // By default 80 x 24, where the terminal does not say.
  struct Size {
    int columns = 80, rows = 24;
  };
  static Size size();

  // Writes all of `bytes`, or what a signal that ends the process leaves time for. Throws Error(kSaveFailed)
  // if the terminal is gone.
  void write(const std::string& bytes);

  // Waits up to `seconds` for a key or a signal: kQuit after q, Q, Ctrl-D or the end of stdin; kInterrupted
  // after a signal that ends the process; kRedraw after a new size and after a stop (Ctrl-Z); kIgnored after
  // any other key.
  Event wait(double seconds);

  // The signal that came; 0: none.
  static int signal_that_came();

 private:
  struct Signals;
  void enter();
  Event handle_signals();
  Event read_keys();

  std::unique_ptr<Signals> signals_;
  bool keys_ = false;  // stdin is a terminal
};

}  // namespace hyperion::monitor
