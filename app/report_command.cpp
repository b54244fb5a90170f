#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include "app/commands.h"
#include "app/monitor/follower.h"
#include "app/report/page.h"
#include "app/report/run_folder.h"
#include "base/clock.h"
#include "base/counted.h"
#include "base/durable.h"
#include "base/files.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/progress.h"
#include "base/standard_streams.h"
#include "base/text.h"

namespace hyperion::app {
namespace fs = std::filesystem;
namespace {

using Runs = std::vector<report::ReportRun>;

// Each folder once, whatever it is called.
std::vector<std::string> different_folders(const std::vector<std::string>& folders) {
  std::vector<std::string> different;
  std::map<fs::path, std::string> names;
  for (const std::string& folder : folders) {
    std::error_code error;
    fs::path path = fs::weakly_canonical(folder, error);
    if (error) path = folder;
    if (!path.has_filename()) path = path.parent_path();
    const auto [first, is_new] = names.emplace(std::move(path), folder);
    if (is_new)
      different.push_back(folder);
    else
      log_warning("report: {} and {} are the same folder: it is shown once", printable(first->second),
                  printable(fs::path(folder)));
  }
  return different;
}

std::string without_slash(std::string folder) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  return folder;
}

// Contents lists the folders of a page, their names on it, and its baseline.
struct Contents {
  std::vector<std::string> folders, names;
  report::PageChoices choices{};

  explicit Contents(const CommandLine::Report& options)
      : folders(different_folders(options.folders)), names(folders) {
    if (folders.size() > report::kMaxRuns)
      throw_config("report: {} runs, at most {} can be distinguished on one page", folders.size(),
                   report::kMaxRuns);
    for (const std::string& folder : folders)
      if (options.watch > 0 && parse_number<double>(folder) && !name_exists(folder))
        throw_config("report: {}: no such folder; the time between refreshes is given as --watch={}", folder,
                     folder);
    for (const std::string& option : options.names) name_run(option);
    for (size_t i = 0; i < names.size(); ++i)
      if (std::ranges::count(names, names[i]) > 1)
        throw_config("report: two runs are called {}: give each --name another NAME", printable(names[i]));
    if (!options.baseline.empty()) choices.baseline = run_of(options.baseline);
    if (options.ratio && !choices.baseline)
      throw_config("report: --ratio needs --baseline=NAME, the run that the others are compared with");
    choices.ratio = options.ratio;
  }

 private:
  // A folder may have "=" in its name: the longest one counts.
  void name_run(const std::string& option) {
    std::optional<size_t> found;
    for (size_t i = 0; i < folders.size(); ++i) {
      const std::string folder = without_slash(folders[i]);
      const bool named = option.starts_with(folder + "=") || option.starts_with(folder + "/=");
      if (named && (!found || folders[*found].size() < folders[i].size())) found = i;
    }
    if (!found)
      throw_config("report: --name {}: expected DIR=NAME with a DIR of this command: {}", printable(option),
                   all_of(folders));
    const size_t equals = option.find('=', without_slash(folders[*found]).size());
    names[*found] = option.substr(equals + 1);
    if (names[*found].empty()) throw_config("report: --name {}: NAME is empty", printable(option));
  }

  size_t run_of(const std::string& baseline) const {
    if (folders.size() < 2) throw_config("report: --baseline compares runs: give at least two DIRs");
    for (const auto* texts : {&names, &folders})
      for (size_t i = 0; i < texts->size(); ++i)
        if (without_slash((*texts)[i]) == without_slash(baseline)) return i;
    throw_config("report: --baseline {}: no run has that name: {}", printable(baseline), all_of(names));
  }

  static std::string all_of(std::vector<std::string> texts) {
    for (std::string& text : texts) text = printable(fs::path(text));
    return fmt::format("{}", fmt::join(texts, ", "));
  }
};

void write_page(const CommandLine::Report& options, const Contents& contents, Runs& runs) {
  for (size_t i = 0; i < runs.size(); ++i) {
    if (contents.names[i] == runs[i].name) continue;
    runs[i].folder = runs[i].name;
    runs[i].name = contents.names[i];
  }
  write_file_atomic(options.output, report::report_page(runs, unix_seconds(), contents.choices));
}

// Returns the loss at a step, between its points; NaN outside of them.
double loss_at(const report::ReportRun& run, double step) {
  std::vector<double> steps, losses;
  for (const auto& [index, bucket] : run.history.current(report::RowKind::kTraining).buckets()) {
    steps.push_back(bucket.steps.mean());
    losses.push_back(bucket.range(report::kLossTag).mean());
  }
  if (steps.empty() || step < steps.front() || step > steps.back()) return NAN;
  return report::interpolate(steps, losses, step);
}

// Returns ", loss +0.25 against NAME at step 40", for the last step that both runs have; "" if there is none.
std::string loss_text(const report::ReportRun& run, const report::ReportRun& baseline, bool ratio) {
  double step = INFINITY;
  for (const report::ReportRun* of : {&run, &baseline}) {
    const auto& buckets = of->history.current(report::RowKind::kTraining).buckets();
    if (!buckets.empty()) step = std::min(step, buckets.rbegin()->second.steps.mean());
  }
  const double loss = loss_at(run, step), other = loss_at(baseline, step);
  const double change = ratio ? loss / other : loss - other;
  if (!std::isfinite(change)) return "";
  return fmt::format(
      ", loss {} {} at step {:.0f}",
      ratio ? fmt::format("{:.4g} times that of", change) : fmt::format("{:+.4g} against", change),
      printable(baseline.name), step);
}

void print_runs(const Runs& runs, const report::PageChoices& choices) {
  for (size_t i = 0; i < runs.size(); ++i) {
    const report::ReportRun& run = runs[i];
    const report::MetricRow* newest = run.history.newest(report::RowKind::kTraining);
    fmt::print("{}: {}", printable(fs::path(run.name)),
               run.lines > 0 ? counted(run.lines, "line") : "no metrics yet: waiting for the first line");
    if (newest != nullptr) fmt::print(", newest step {}", newest->step);
    if (choices.baseline && *choices.baseline != i)
      fmt::print("{}", loss_text(run, runs[*choices.baseline], choices.ratio));
    if (run.bad_lines > 0) fmt::print(", {} that could not be read", run.bad_lines);
    fmt::print("\n");
  }
}

// EndingSignals lets a page be finished before a signal ends the process. The second signal of a kind ends it
// at once: a read may hang.
class EndingSignals {
 public:
  EndingSignals() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
      throw Error(ExitCode::kResources, "report: no pipe: " + errno_text(errno));
    read_end_ = Descriptor(ends[0]);
    write_end_ = Descriptor(ends[1]);
    wake_up_ = ends[1];
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction ours {
      }, old{};
      ours.sa_handler = [](int signal) {
        came_ = signal;
        static_cast<void>(::write(wake_up_, "e", 1) == 1);
      };
      ours.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
      ::sigaction(number, nullptr, &old);
      if (old.sa_handler != SIG_IGN) ::sigaction(number, &ours, nullptr);  // nohup, a job in the background
    }
  }

  // The signal that came; 0: none.
  static int came() { return came_; }

  // Waits for `seconds`, or until a signal came.
  void wait(double seconds) const {
    pollfd signal{read_end_.get(), POLLIN, 0};
    ::poll(&signal, 1, static_cast<int>(std::min(seconds, 86400.0) * 1000));
  }

 private:
  static inline volatile std::sig_atomic_t came_ = 0, wake_up_ = -1;
  Descriptor read_end_{}, write_end_{};
};

// Reads what is new in the metrics of a run, unless a signal came.
void read_available(monitor::RunFollower& follower, const std::string& folder) {
  std::optional<Progress> progress;
  while (EndingSignals::came() == 0 && follower.refresh()) {
    if (!progress) progress.emplace("read " + folder, follower.state().bytes, "B");
    progress->update(follower.state().bytes_read);
  }
}

report::ReportRun read_run(const std::string& folder, size_t max_buckets) {
  if (!name_exists(fs::path(folder) / report::kMetricsName, ExitCode::kUsage))
    throw_config("report: {}", report::no_metrics_text(folder));
  monitor::RunFollower follower(folder, max_buckets);
  read_available(follower, folder);
  if (!follower.state().problem.empty()) throw_data("{}", follower.state().problem);
  report::ReportRun run = follower.state().run();
  if (run.torn_end) {
    ++run.lines;
    ++run.bad_lines;
  }
  monitor::require_rows(run, "report");
  return run;
}

// Returns whether a run is over: it is complete, or it ended otherwise and was not started again for a while.
bool is_over(const report::ReportRun& run, double now) {
  constexpr double kRestartSeconds = 600;
  const auto& events = run.history.events();
  if (events.empty() || events.front().event != "end") return false;
  return run.value(&events.front(), "end.exit_code") == static_cast<double>(ExitCode::kOk) ||
         now - events.front().value(report::kTimeTag).value_or(0) > kRestartSeconds;
}

class Watch {
 public:
  Watch(const CommandLine::Report& options, Contents contents)
      : options_(options), contents_(std::move(contents)), problems_(contents_.folders.size()) {
    for (const std::string& folder : contents_.folders)
      followers_.emplace_back(folder, report::buckets_per_run(contents_.folders.size()));
  }

  ExitCode run() {
    for (bool first = true;; first = false) {
      bool changed = first;
      for (size_t i = 0; i < followers_.size(); ++i) changed |= read_new(i, first);
      const double now = unix_seconds();
      const bool over = std::ranges::all_of(
          followers_, [&](const auto& follower) { return is_over(follower.state().run(), now); });
      const int signal = EndingSignals::came();
      contents_.choices.refresh = over || signal != 0 ? 0 : options_.watch;
      // A page without new lines says how old they are.
      if (changed || over || signal != 0 || now - written_ >= kAgeSeconds) write(now, first);
      if (over || signal != 0) return end(signal);
      signals_.wait(options_.watch);
    }
  }

 private:
  static constexpr double kAgeSeconds = 60;

  // Returns whether the run has changed.
  bool read_new(size_t i, bool first) {
    monitor::RunFollower& follower = followers_[i];
    const monitor::MonitoredRun& state = follower.state();
    const auto extent = [&] {
      return std::tuple(state.run().lines, state.bytes_read, state.run().starts.count, state.problem);
    };
    const auto before = extent();
    read_available(follower, contents_.folders[i]);
    if (first && state.run().lines > 0) monitor::require_rows(state.run(), "report");
    if (const std::string meant = report::nearest_metrics_text(contents_.folders[i]);
        first && state.waiting && !meant.empty())
      log_warning("report: {}: holds no {} yet{}", printable(fs::path(contents_.folders[i])),
                  report::kMetricsName, meant);
    if (state.problem != problems_[i]) {
      problems_[i] = state.problem;
      if (!state.problem.empty()) log_warning("report: {}", state.problem);
    }
    return extent() != before;
  }

  void write(double now, bool first) {
    Runs runs;
    for (size_t i = 0; i < followers_.size(); ++i) {
      runs.push_back(followers_[i].state().run());
      runs.back().name = contents_.folders[i];
      if (!problems_[i].empty()) runs.back().starts.problems.push_back(problems_[i]);
    }
    write_page(options_, contents_, runs);
    written_ = now;
    if (!first) return;
    print_runs(runs, contents_.choices);
    const std::string page = printable(fs::path(options_.output));
    print_text(contents_.choices.refresh > 0
                   ? fmt::format("{}: refreshed every {:.4g} s until all runs have ended; Ctrl-C ends it\n",
                                 page, options_.watch)
                   : page + "\n");
  }

  ExitCode end(int signal) const {
    const std::string page = printable(fs::path(options_.output));
    if (signal == 0) {
      print_text(fmt::format("all runs have ended: {} is complete\n", page));
      return ExitCode::kOk;
    }
    print_text(fmt::format("{} is no longer refreshed\n", page));
    // The process ends by the signal, as its parent expects; the first process of a container goes on.
    std::signal(signal, SIG_DFL);
    std::raise(signal);
    return static_cast<ExitCode>(128 + signal);
  }

  const CommandLine::Report& options_;
  Contents contents_;
  std::vector<std::string> problems_;  // of each run, as last said
  EndingSignals signals_;
  std::deque<monitor::RunFollower> followers_;
  double written_ = 0;  // seconds since 1970
};

}  // namespace

ExitCode report_command(const CommandLine::Report& options) {
  Contents contents(options);
  if (options.watch > 0) return Watch(options, std::move(contents)).run();
  Runs runs;
  for (const std::string& folder : contents.folders)
    runs.push_back(read_run(folder, report::buckets_per_run(contents.folders.size())));
  write_page(options, contents, runs);
  print_runs(runs, contents.choices);
  fmt::print("{}\n", printable(fs::path(options.output)));
  return ExitCode::kOk;
}

}  // namespace hyperion::app
