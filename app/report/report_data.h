// From the rows of runs to the plots of a page. No I/O.
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
  std::string name;               // the folder, as the command line names it
  std::vector<std::string> tags;  // by number
  RunHistory history{1};
  RunStarts starts;
  uint64_t lines = 0;
  uint64_t bad_lines = 0;      // not JSON, too long, or without step and time
  bool torn_end = false;       // the last line has no end and is no row: it is among bad_lines
  uint64_t tags_left_out = 0;  // fields of more different tags than are kept

  // nullopt for no row, and for a tag that it does not have
  std::optional<double> value(const MetricRow* row, const std::string& tag) const;
};

struct ReportData {
  std::vector<Plot> plots;       // what every run has, in the page's order; plots without a line are left out
  std::vector<Plot> more_plots;  // tags that have no plot of their own above
  uint64_t plots_left_out = 0;   // tags beyond kMaxMorePlots
  std::vector<PlotPoints> points;
  std::array<HorizontalAxis, kPlotAxes> axes;
  std::vector<PlotMark> marks;
};
inline constexpr size_t kMaxMorePlots = 24;
inline constexpr size_t kMaxReferences = 8;                        // per plot
inline constexpr size_t kMaxMarks = RunHistory::kMaxAttempts - 1;  // per run, the newest

// How many buckets a run's history may have, so that the page stays small: for the page's script, which shows
// parts of the run too, and for the plots of a page without script.
inline size_t buckets_per_run(size_t runs) {
  return std::max<size_t>(4000 / runs, 400);
}
inline size_t drawn_buckets_per_run(size_t runs) {
  return std::max<size_t>(1000 / runs, 100);
}

ReportData report_data(const std::vector<ReportRun>& runs);

// y at x by a straight line between the neighbours of x in xs (ascending); the first or last y outside of
// them, NaN for empty lists.
double interpolate(const std::vector<double>& xs, const std::vector<double>& ys, double x);

}  // namespace hyperion::report
