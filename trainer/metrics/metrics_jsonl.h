// metrics.jsonl holds one JSON object per line, for scripts and bridges to other trackers. A line holds the
// metrics of a logged step or of a validation, or an event; docs/metrics.md lists the keys. Numbers have full
// double precision; the strings "NaN", "Infinity" and "-Infinity", which Python's float() reads, replace
// non-finite numbers. A resumed run appends, so a step can occur twice: the later line counts. One process at
// a time has the file open for writing. The lines belong to one run and the runs that it continues.
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

// Tags and values, in the order of writing.
using MetricList = std::vector<std::pair<std::string, double>>;

// Fields of a line, in the order of writing. An event's first field is "event", its name.
using JsonFields = std::vector<std::pair<std::string, std::variant<double, int64_t, std::string>>>;

// The position of a line in the history of a job.
struct LineHead {
  int64_t step = 0;
  double unix_seconds = 0;
  std::string run_id;  // the writing start's folder name under runs/
};

std::string json_line(const LineHead& head, const JsonFields& fields);

// Throws Error(kUsage) naming the run and job.dump_folder if another process has a JsonlWriter of the file.
void require_no_writer(const std::filesystem::path& path);

// The treatment of lines that a file already holds.
enum class EarlierLines {
  kContinued,  // the run appends to them
  kOfOthers,   // another run's: the file is renamed to metrics-<that run's id>.jsonl
};

// Writes each line by one write(2) in append mode, so a crash leaves complete lines. It first ends a partial
// last line of an earlier crash. A failed write is logged once and ends the writing. Thread-safe, because the
// save thread reports the end of a save.
class JsonlWriter {
 public:
  // Creates the folder and the file, and holds a flock() on the file. Throws Error(kPreCheckpoint) naming the
  // path if that fails, and the errors of require_no_writer().
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
