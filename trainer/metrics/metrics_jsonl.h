// metrics.jsonl: one JSON object a logged step, for scripts and bridges to other trackers.
//   {"step": 10, "time": 1771588800.125, "loss_metrics/global_avg_loss": 4.123, ...}
// Keys are the TensorBoard tags, numbers carry full double precision, and what JSON has no number for is one
// of the strings "NaN", "Infinity", "-Infinity" (Python's float() reads them). A run that resumes appends, so
// a step can occur twice: the later line counts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace hyperion {

// Tag and value, in the order they are written.
using MetricList = std::vector<std::pair<std::string, double>>;

std::string json_line(int64_t step, double unix_seconds, const MetricList& metrics);

// Each line is one write(2) to a file in append mode: a crash leaves whole lines, and a partial last line of
// an earlier crash is ended first. A failed write is logged once and ends the writing.
class JsonlWriter {
 public:
  // Creates the folder and the file. Throws Error(kUsage) naming the path when that fails.
  explicit JsonlWriter(const std::filesystem::path& path);
  ~JsonlWriter();
  JsonlWriter(const JsonlWriter&) = delete;
  JsonlWriter& operator=(const JsonlWriter&) = delete;

  void write(int64_t step, double unix_seconds, const MetricList& metrics);

 private:
  void append(const std::string& text);

  std::filesystem::path path_;
  int fd_ = -1;  // -1 after a failed write
};

}  // namespace hyperion
