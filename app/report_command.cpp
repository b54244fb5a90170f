#include <algorithm>
#include <filesystem>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "app/commands.h"
#include "app/report/backward_lines.h"
#include "app/report/page.h"
#include "base/clock.h"
#include "base/counted.h"
#include "base/files.h"
#include "base/log.h"
#include "base/nearest.h"
#include "base/printable.h"
#include "base/progress.h"

namespace hyperion::app {
namespace fs = std::filesystem;
namespace {

bool holds_metrics(const fs::path& folder) {
  std::error_code error;
  return fs::exists(fs::symlink_status(folder / "metrics.jsonl", error));
}

// The folders with metrics that were meant: the nearest one above `folder`, else those in it or one deeper.
std::vector<std::string> nearest_with_metrics(const fs::path& folder) {
  constexpr size_t kMaxEntries = 1000, kMaxNamed = 3;
  std::vector<std::string> found;
  fs::path above = folder.lexically_normal();
  if (!above.has_filename()) above = above.parent_path();  // "out/"
  while (above.has_relative_path()) {
    const fs::path parent = above.has_parent_path() ? above.parent_path() : fs::path(".");
    if (holds_metrics(parent)) return {parent.string()};
    if (parent == ".") break;
    above = parent;
  }
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (size_t seen = 0; !error && entry != fs::recursive_directory_iterator() && seen < kMaxEntries; ++seen) {
    if (entry.depth() >= 1) entry.disable_recursion_pending();
    if (entry->is_directory(error) && holds_metrics(entry->path())) found.push_back(entry->path().string());
    entry.increment(error);
  }
  std::ranges::sort(found);
  if (found.size() > kMaxNamed) found.resize(kMaxNamed);
  return found;
}

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
  if (!name_exists(file, ExitCode::kUsage)) {
    std::vector<std::string> nearest = nearest_with_metrics(folder);
    for (std::string& name : nearest) name = printable(fs::path(name));
    throw_config("report: {}: holds no metrics.jsonl: give the folder of a run (its job.dump_folder){}",
                 printable(fs::path(folder)), did_you_mean(fmt::format("{}", fmt::join(nearest, " or "))));
  }
  report::ReportRun run;
  run.name = folder;
  run.history = report::RunHistory(max_buckets);
  run.starts = report::read_run_starts(fs::path(folder) / "runs");
  std::map<std::string, double> max_norms;  // by run id
  for (const report::RunStart& start : run.starts.starts)
    if (const auto max_norm = start.number("training.max_norm")) max_norms[start.name] = *max_norm;
  report::MetricParser parser;
  report::BackwardLines lines(file);
  Progress progress("read " + folder, lines.size(), "B");
  while (const auto line = lines.next()) {
    ++run.lines;
    auto row = line->too_long ? std::nullopt : parser.parse(line->text);
    if (row) {
      const auto norm = row->value(report::kGradNormTag);
      const auto max_norm = max_norms.find(row->run_id);
      if (norm && max_norm != max_norms.end())
        row->values.emplace_back(report::kClippedTag, *norm > max_norm->second);
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
  run.tags = parser.tags();
  run.tags_left_out = parser.tags_left_out();
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
