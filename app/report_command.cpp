#include <algorithm>
#include <filesystem>
#include <map>

#include <fmt/format.h>

#include "app/commands.h"
#include "app/report/backward_lines.h"
#include "app/report/page.h"
#include "app/report/run_folder.h"
#include "base/clock.h"
#include "base/counted.h"
#include "base/files.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/progress.h"

namespace hyperion::app {
namespace fs = std::filesystem;
namespace {

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

report::ReportRun read_run(const std::string& folder, size_t max_buckets) {
  const fs::path file = fs::path(folder) / "metrics.jsonl";
  if (!name_exists(file, ExitCode::kUsage)) throw_config("report: {}", report::no_metrics_text(folder));
  report::ReportRun run;
  run.name = folder;
  run.history = report::RunHistory(max_buckets);
  run.starts = report::read_run_starts(fs::path(folder) / "runs");
  report::RowReader reader;
  reader.set_starts(run.starts.starts);
  report::BackwardLines lines(file);
  Progress progress("read " + folder, lines.size(), "B");
  while (const auto line = lines.next()) {
    ++run.lines;
    if (const auto row = line->too_long ? std::nullopt : reader.row(line->text)) {
      run.history.add_older(*row);
    } else {
      ++run.bad_lines;
      run.torn_end |= !line->ended;
    }
    progress.update(lines.done());
  }
  if (run.lines == 0)
    throw_config("report: {}: holds no line yet: the first logged step writes one", printable(file));
  if (run.lines == run.bad_lines) {
    throw_data("{}: holds {} and no row of metrics (a JSON object with \"step\" and \"time\")",
               printable(file), counted(run.lines, "line"));
  }
  run.tags = reader.parser().tags();
  run.tags_left_out = reader.parser().tags_left_out();
  return run;
}

}  // namespace

ExitCode report_command(const CommandLine::Report& options) {
  const std::vector<std::string> folders = different_folders(options.folders);
  if (folders.size() > report::kMaxRuns)
    throw_config("report: {} runs, at most {} can be distinguished on one page", folders.size(),
                 report::kMaxRuns);
  std::vector<report::ReportRun> runs;
  for (const std::string& folder : folders)
    runs.push_back(read_run(folder, report::buckets_per_run(folders.size())));
  write_file_atomic(options.output, report::report_page(runs, unix_seconds()));
  for (const report::ReportRun& run : runs) {
    const report::MetricRow* newest = run.history.newest(report::RowKind::kTraining);
    fmt::print("{}: {}", printable(fs::path(run.name)), counted(run.lines, "line"));
    if (newest != nullptr) fmt::print(", newest step {}", newest->step);
    if (run.bad_lines > 0) fmt::print(", {} that could not be read", run.bad_lines);
    fmt::print("\n");
  }
  fmt::print("{}\n", printable(fs::path(options.output)));
  return ExitCode::kOk;
}

}  // namespace hyperion::app
