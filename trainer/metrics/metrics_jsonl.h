// metrics.jsonl: one JSON object per line, for scripts and bridges to other trackers. A line holds the
// metrics of a logged step or of a validation, or an event; docs/metrics.md has the keys. Numbers carry full
// double precision, and what JSON has no number for is one of the strings "NaN", "Infinity", "-Infinity"
// (Python's float() reads them). A run that resumes appends, so a step can occur twice: the later line
// counts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace hyperion::metrics {

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

// Each line is one write(2) to a file in append mode: a crash leaves whole lines, and a partial last line of
// an earlier crash is ended first. A failed write is logged once and ends the writing. For several threads:
// the thread of a save reports its end.
class JsonlWriter {
 public:
  // Creates the folder and the file. Throws Error(kUsage) naming the path when that fails.
  explicit JsonlWriter(const std::filesystem::path& path);
  ~JsonlWriter();
  JsonlWriter(const JsonlWriter&) = delete;
  JsonlWriter& operator=(const JsonlWriter&) = delete;

  // Appends a line that ends in '\n'.
  void append(const std::string& line);

 private:
  std::filesystem::path path_;
  std::mutex mutex_;
  int fd_ = -1;  // -1 after a failed write
};

}  // namespace hyperion::metrics
