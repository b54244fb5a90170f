// Rows for tests of the report.
#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>

#include "app/report/history.h"

namespace hyperion::report {

inline std::string training_line(int64_t step, double loss, double time, const std::string& more = "") {
  return fmt::format("{{\"step\": {}, \"time\": {}, \"loss_metrics/global_avg_loss\": {}{}}}", step, time,
                     loss, more);
}

// The history of lines in the order of the file.
inline RunHistory history_of(const std::vector<std::string>& lines, MetricParser& parser,
                             size_t max_buckets = 1024) {
  RunHistory history(max_buckets);
  for (const std::string& line : lines)
    if (const auto row = parser.parse(line)) history.add(*row);
  return history;
}

// Steps and mean values of a tag.
inline std::vector<std::pair<double, double>> line_of(const StepBuckets& buckets, int tag) {
  std::vector<std::pair<double, double>> line;
  for (const auto& [index, bucket] : buckets.buckets())
    if (bucket.range(tag).count > 0) line.emplace_back(bucket.steps.mean(), bucket.range(tag).mean());
  return line;
}

}  // namespace hyperion::report
