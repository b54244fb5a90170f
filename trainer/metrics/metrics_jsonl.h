// metrics.jsonl: one JSON object per line, for scripts and bridges to other trackers. A line holds the
// metrics of a logged step or of a validation, or an event; docs/metrics.md has the keys. Numbers carry full
// double precision, and what JSON has no number for is one of the strings "NaN", "Infinity", "-Infinity"
// (Python's float() reads them). A run that resumes appends, so a step can occur twice: the later line
// counts. One process at a time has the file open for writing, and its lines are those of one run and of what
// that continues.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/durable.h"

namespace hyperion::metrics {

inline constexpr const char* kMetricsFile = "metrics.jsonl";

// Tag and value, in the order they are written.
using MetricList = std::vector<std::pair<std::string, double>>;

// What a line says, in the order it is written; an event has "event" first, its name.
using JsonFields = std::vector<std::pair<std::string, std::variant<double, int64_t, std::string>>>;

// Where a line stands in the history of a job.
struct LineHead {
  int64_t step = 0;
  double unix_seconds = 0;
  std::string run_id;  // of the start that writes it: the name of its folder under runs/
};

std::string json_line(const LineHead& head, const JsonFields& fields);

// Throws Error(kUsage) naming the run and job.dump_folder while another process has a JsonlWriter of the
// file.
void require_no_writer(const std::filesystem::path& path);

// Which lines a file may have before those of a run.
enum class EarlierLines {
  kContinued,  // the run goes on where they end
  kOfOthers,   // lines of another run: the file is renamed to metrics-<that run's id>.jsonl
};

// Each line is one write(2) to a file in append mode: a crash leaves whole lines, and a partial last line of
// an earlier crash is ended first. A failed write is logged once and ends the writing. For several threads:
// the thread of a save reports its end.
class JsonlWriter {
 public:
  // Creates the folder and the file, and holds a flock() on it. Throws Error(kPreCheckpoint) naming the path
  // when that fails, and as require_no_writer().
  explicit JsonlWriter(const std::filesystem::path& path, EarlierLines earlier = EarlierLines::kContinued);
  JsonlWriter(const JsonlWriter&) = delete;
  JsonlWriter& operator=(const JsonlWriter&) = delete;

  // Appends a line that ends in '\n'.
  void append(const std::string& line);

 private:
  std::filesystem::path path_;
  std::mutex mutex_;
  Descriptor file_;  // closed after a failed write
};

}  // namespace hyperion::metrics
