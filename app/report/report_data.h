// Turns the rows of runs into the plots of a page. No I/O.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/report/history.h"
#include "app/report/metric_rows.h"
#include "app/report/plot.h"
#include "app/report/run_record.h"

namespace hyperion::report {

struct ReportRun {
  std::string name;               // the folder as named on the command line, or the name given to it there
  std::string folder;             // the folder, where `name` is another one; else ""
  std::vector<std::string> tags;  // by tag number
  RunHistory history{1};
  RunStarts starts;
  uint64_t lines = 0;
  uint64_t bad_lines = 0;      // not JSON, too long, or without step and time
  bool torn_end = false;       // the last line is incomplete; bad_lines counts it
  uint64_t tags_left_out = 0;  // fields whose tags exceed MetricParser's limits

  // Returns nullopt without a row, or if the row lacks the tag.
  std::optional<double> value(const MetricRow* row, const std::string& tag) const;
};

struct ReportData {
  std::vector<Plot> plots;       // the standard plots in the page's order; plots without lines are left out
  std::vector<Plot> more_plots;  // plots of all other tags
  uint64_t plots_left_out = 0;   // number of tags beyond kMaxMorePlots
  std::vector<PlotPoints> points;
  std::array<HorizontalAxis, kPlotAxes> axes;
  std::vector<PlotMark> marks;
};
inline constexpr size_t kMaxMorePlots = 24;
inline constexpr size_t kMaxReferences = 8;                        // per plot
inline constexpr size_t kMaxMarks = RunHistory::kMaxAttempts - 1;  // the newest per run

// Both limit the buckets of a run's history, so that the page stays small: buckets_per_run() for the page's
// script, which can zoom, and drawn_buckets_per_run() for plots without script.
inline size_t buckets_per_run(size_t runs) {
  return std::max<size_t>(4000 / runs, 400);
}
inline size_t drawn_buckets_per_run(size_t runs) {
  return std::max<size_t>(1000 / runs, 100);
}

ReportData report_data(const std::vector<ReportRun>& runs);

// Interpolates y at x linearly between the neighbours of x in xs (ascending). Outside of xs it returns the
// first or last y; for empty lists NaN.
double interpolate(const std::vector<double>& xs, const std::vector<double>& ys, double x);

}  // namespace hyperion::report
