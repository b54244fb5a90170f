#include "trainer/metrics/metrics_jsonl.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

namespace hyperion {
namespace {

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// fmt's {} is the shortest text that reads back as the same double, and valid JSON for every finite one.
std::string json_number(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  return fmt::format("{}", value);
}

bool ends_in_partial_line(int fd) {
  const off_t size = ::lseek(fd, 0, SEEK_END);
  char last = '\n';
  return size > 0 && ::pread(fd, &last, 1, size - 1) == 1 && last != '\n';
}

}  // namespace

std::string json_line(int64_t step, double unix_seconds, const MetricList& metrics) {
  std::string line = fmt::format("{{\"step\": {}, \"time\": {:.6f}", step, unix_seconds);
  for (const auto& [tag, value] : metrics)
    line += fmt::format(", {}: {}", json_string(tag), json_number(value));
  return line + "}\n";
}

JsonlWriter::JsonlWriter(const std::filesystem::path& path) : path_(path) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) throw_config("{}: cannot open the metrics file: {}", path.string(), std::strerror(errno));
  if (ends_in_partial_line(fd_)) append("\n");
}

JsonlWriter::~JsonlWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void JsonlWriter::write(int64_t step, double unix_seconds, const MetricList& metrics) {
  append(json_line(step, unix_seconds, metrics));
}

void JsonlWriter::append(const std::string& text) {
  if (fd_ < 0) return;
  ssize_t written = 0;
  do {
    written = ::write(fd_, text.data(), text.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(text.size())) return;
  log_warning("{}: write failed ({}): no more metrics are written there", path_.string(),
              written < 0 ? std::strerror(errno) : "disk full");
  ::close(fd_);
  fd_ = -1;
}

}  // namespace hyperion
