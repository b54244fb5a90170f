// Reads what the folder of a run holds: finds its metrics, and parses their lines with the run's own
// settings.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/report/metric_rows.h"
#include "app/report/run_record.h"

namespace hyperion::report {

inline constexpr const char* kMetricsName = "metrics.jsonl";

// Returns "; did you mean A or B?" with the folders with metrics that were meant: the nearest one above
// `folder`, else some in it or one deeper. "" if there are none.
std::string nearest_metrics_text(const std::filesystem::path& folder);

// Returns "FOLDER: holds no metrics.jsonl ..." with nearest_metrics_text().
std::string no_metrics_text(const std::filesystem::path& folder);

// RowReader parses lines and adds kClippedTag to rows with a gradient norm.
class RowReader {
 public:
  // The starts, whose training.max_norm counts for rows of their run ids.
  void set_starts(const std::vector<RunStart>& starts);

  // Parses a line as MetricParser::parse() does.
  std::optional<MetricRow> row(std::string_view line);

  const MetricParser& parser() const { return parser_; }

 private:
  MetricParser parser_;
  std::map<std::string, double> max_norms_;  // by run id
};

}  // namespace hyperion::report
