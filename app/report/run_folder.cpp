#include "app/report/run_folder.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/nearest.h"
#include "base/printable.h"

namespace hyperion::report {
namespace fs = std::filesystem;
namespace {

bool holds_metrics(const fs::path& folder) {
  std::error_code error;
  return fs::exists(fs::symlink_status(folder / kMetricsName, error));
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

}  // namespace

std::string nearest_metrics_text(const fs::path& folder) {
  std::vector<std::string> nearest = nearest_with_metrics(folder);
  for (std::string& name : nearest) name = printable(fs::path(name));
  return did_you_mean(fmt::format("{}", fmt::join(nearest, " or ")));
}

std::string no_metrics_text(const fs::path& folder) {
  return fmt::format("{}: holds no {}: give the folder of a run (its job.dump_folder){}", printable(folder),
                     kMetricsName, nearest_metrics_text(folder));
}

void RowReader::set_starts(const std::vector<RunStart>& starts) {
  for (const RunStart& start : starts)
    if (const auto max_norm = start.number("training.max_norm")) max_norms_[start.name] = *max_norm;
}

std::optional<MetricRow> RowReader::row(std::string_view line) {
  auto row = parser_.parse(line);
  if (!row) return row;
  const auto norm = row->value(kGradNormTag);
  const auto max_norm = max_norms_.find(row->run_id);
  if (norm && max_norm != max_norms_.end()) row->values.emplace_back(kClippedTag, *norm > max_norm->second);
  return row;
}

}  // namespace hyperion::report
