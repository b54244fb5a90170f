#include "trainer/report/report_command.h"

#include <chrono>
#include <filesystem>

#include "base/counted.h"
#include "base/durable.h"
#include "base/files.h"
#include "base/progress.h"
#include "trainer/report/backward_lines.h"
#include "trainer/report/page.h"

namespace hyperion {
namespace fs = std::filesystem;
namespace {

ReportRun read_run(const std::string& folder, size_t most_buckets) {
  const fs::path file = fs::path(folder) / "metrics.jsonl";
  std::error_code error;
  if (!fs::exists(fs::symlink_status(file, error))) {
    throw_config("report: {}: holds no metrics.jsonl: give the folder of a run (its job.dump_folder)",
                 printable(folder));
  }
  ReportRun run;
  run.name = folder;
  run.history = RunHistory(most_buckets);
  MetricParser parser;
  BackwardLines lines(file);
  Progress progress("read " + folder, lines.size(), "B");
  while (const auto line = lines.next()) {
    ++run.lines;
    const auto row = line->too_long ? std::nullopt : parser.parse(line->text);
    if (row) {
      run.history.add_older(*row);
    } else {
      ++run.bad_lines;
      run.torn_end |= !line->ended;
    }
    progress.update(lines.done());
  }
  if (run.lines == 0)
    throw_config("report: {}: holds no line yet: a line comes with the first logged step", printable(file));
  if (run.lines == run.bad_lines) {
    throw_data("{}: holds {} and no row of metrics (a JSON object with \"step\" and \"time\")",
               printable(file), counted(run.lines, "line"));
  }
  run.tags = parser.tags();
  run.tags_left_out = parser.tags_left_out();
  run.starts = read_run_starts(fs::path(folder) / "runs");
  return run;
}

}  // namespace

ExitCode report_command(const ReportOptions& options) {
  if (options.folders.size() > kMostRuns)
    throw_config("report: {} runs, at most {} can be told apart in one page", options.folders.size(),
                 kMostRuns);
  std::vector<ReportRun> runs;
  for (const std::string& folder : options.folders)
    runs.push_back(read_run(folder, buckets_per_run(options.folders.size())));
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  write_file_atomic(options.output, report_page(runs, now));
  for (const ReportRun& run : runs) {
    const MetricRow* newest = run.history.newest(RowKind::kTraining);
    fmt::print("{}: {}", printable(run.name), counted(run.lines, "line"));
    if (newest != nullptr) fmt::print(", newest step {}", newest->step);
    if (run.bad_lines > 0) fmt::print(", {} that could not be read", run.bad_lines);
    fmt::print("\n");
  }
  fmt::print("{}\n", printable(options.output));
  return ExitCode::kOk;
}

}  // namespace hyperion
