#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <unistd.h>

#include "app/commands.h"
#include "app/monitor/follower.h"
#include "app/monitor/layout.h"
#include "app/monitor/screen.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/printable.h"
#include "base/process.h"
#include "base/standard_streams.h"
#include "base/terminal.h"

namespace hyperion::app {
namespace fs = std::filesystem;
namespace {

bool utf8_terminal() {
  const auto value = [](const char* name) { return environment_variable(name).value_or(""); };
  return monitor::is_utf8_locale(value("LC_ALL"), value("LC_CTYPE"), value("LANG"));
}

ExitCode print_once(const CommandLine::Monitor& options) {
  if (!name_exists(fs::path(options.folder) / report::kMetricsName, ExitCode::kUsage))
    throw_config("monitor: {}", report::no_metrics_text(options.folder));
  monitor::RunFollower follower(options.folder);
  while (follower.refresh()) continue;
  monitor::require_rows(follower.state().run(), "monitor");
  const monitor::View view{terminal_width(), 0, utf8_terminal(), unix_seconds()};
  std::string text;
  for (const monitor::TextLine& line : monitor::layout(follower.state(), view)) {
    std::string written = monitor::render(line, terminal_escapes(STDOUT_FILENO));
    written.erase(written.find_last_not_of(' ') + 1);
    text += written + "\n";
  }
  print_text(text);
  return ExitCode::kOk;
}

// Returns a hint at the cause for a folder without metrics, or "".
std::string hint_of(const std::string& folder) {
  const size_t colon = folder.find(':');
  if (colon != folder.npos && colon > 0 && colon < folder.find('/'))
    return fmt::format("; if that is another host: ssh -t {} hyperion monitor {}", folder.substr(0, colon),
                       folder.substr(colon + 1));
  return report::nearest_metrics_text(folder);
}

std::string screen_text(const monitor::MonitoredRun& state, double interval, bool utf8, bool colours,
                        const std::string& hint) {
  const auto [columns, rows] = monitor::Screen::size();
  std::string footer = fmt::format("q leaves; refreshed every {:.3g} s", interval);
  if (state.bytes_read < state.bytes)
    footer = fmt::format("q leaves; reading, {:.0f} % of {}",
                         100.0 * static_cast<double>(state.bytes_read) / static_cast<double>(state.bytes),
                         format_bytes(state.bytes));
  const monitor::View view{columns, rows, utf8, unix_seconds(), hint, footer};
  std::string text = "\x1b[H";
  bool first = true;
  for (const monitor::TextLine& line : monitor::layout(state, view)) {
    text += (first ? "" : "\r\n") + monitor::render(line, colours) + "\x1b[K";
    first = false;
  }
  return text + "\x1b[J";
}

// Returns how the view was left.
monitor::Screen::Event show(const CommandLine::Monitor& options) {
  using Event = monitor::Screen::Event;
  monitor::RunFollower follower(options.folder);
  const bool utf8 = utf8_terminal(), colours = terminal_escapes(STDOUT_FILENO);
  const std::string hint = hint_of(options.folder);
  monitor::Screen screen;
  while (true) {
    const bool more = follower.refresh();
    const auto begin = std::chrono::steady_clock::now();
    const double pause = more ? 0 : options.interval;
    bool draw = true;
    while (true) {
      if (draw) screen.write(screen_text(follower.state(), options.interval, utf8, colours, hint));
      const Event event = screen.wait(std::max(pause - seconds_since(begin), 0.0));
      if (event == Event::kQuit || event == Event::kInterrupted) return event;
      if (event == Event::kTimeout) break;
      draw = event == Event::kRedraw;
    }
  }
}

}  // namespace

ExitCode monitor_command(const CommandLine::Monitor& options) {
  if (options.once) return print_once(options);
  const std::string term = environment_variable("TERM").value_or("");
  if (::isatty(STDOUT_FILENO) != 1 || term.empty() || term == "dumb")
    throw_config("monitor: {}: give --once, which prints text",
                 ::isatty(STDOUT_FILENO) != 1 ? "stdout is no terminal"
                                              : "TERM says that this terminal cannot move its cursor");
  if (show(options) == monitor::Screen::Event::kQuit) return ExitCode::kOk;
  // The process ends by the signal, as its parent expects; the first process of a container goes on.
  const int number = monitor::Screen::signal_that_came();
  std::raise(number);
  return static_cast<ExitCode>(128 + number);
}

}  // namespace hyperion::app
