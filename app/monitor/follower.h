// Follows metrics.jsonl of a run's folder while it grows, is renamed, cut or replaced. A refresh reads new
// bytes only, and memory does not grow with the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "app/report/report_data.h"
#include "app/report/run_folder.h"

namespace hyperion::monitor {

inline constexpr size_t kMaxBuckets = 1000;  // of a run's history, by default

// MonitoredRun is the state of one run as its folder shows it.
struct MonitoredRun {
  std::vector<report::ReportRun> runs;  // one, as report::report_data() takes it
  bool waiting = true;                  // there is no metrics.jsonl yet
  uint64_t bytes = 0, bytes_read = 0;   // of metrics.jsonl
  std::optional<double> line_seconds;   // from the last but one training row of a start to the last one
  std::string problem;                  // why the file cannot be read any more; "" if it can

  const report::ReportRun& run() const { return runs.front(); }
};

class RunFollower {
 public:
  // `folder` is a run's job.dump_folder or one of its rank_N folders; it need not exist.
  explicit RunFollower(std::filesystem::path folder, size_t max_buckets = kMaxBuckets);

  // Reads at most `max_bytes` of what is new and returns whether more is left. A file under the same name
  // that is another one, or does not continue what was read, replaces everything. Throws Error(kBadData) if
  // the first read fails; later failures become MonitoredRun::problem, and the next refresh tries again.
  bool refresh(uint64_t max_bytes = 32 << 20);

  const MonitoredRun& state() const { return state_; }

 private:
  static constexpr size_t kMaxLine = 256 * 1024;
  static constexpr size_t kMark = 64;

  void forget();
  void read_records();
  bool read_new(uint64_t max_bytes);
  void take_lines(std::string_view bytes);
  void take_line(std::string_view line);
  void take_complete_end();

  std::filesystem::path folder_, records_;
  size_t max_buckets_;
  MonitoredRun state_;
  report::RowReader reader_;
  std::pair<dev_t, ino_t> file_{};  // the one that was read
  uint64_t offset_ = 0;             // where the next read begins
  std::string mark_;                // the last bytes before offset_, at most kMark
  std::string begun_;               // bytes of the line that has no line feed yet
  bool too_long_ = false;           // that line is longer than kMaxLine, and begun_ is empty
  std::optional<report::MetricRow> last_training_;
  std::string run_id_, run_id_of_records_;  // of the last row; the one for which records were read
  std::filesystem::file_time_type records_time_{};
};

// Throws, for `command`, if the file of a run that a follower has read has no row that could be shown.
void require_rows(const report::ReportRun& run, const char* command);

}  // namespace hyperion::monitor
