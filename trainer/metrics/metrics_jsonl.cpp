#include "trainer/metrics/metrics_jsonl.h"

#include <cerrno>
#include <cmath>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/durable.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/printable.h"

namespace hyperion::metrics {
namespace {

using nlohmann::json;

std::string json_value(const std::string& text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}
// fmt's {} is the shortest text that reads back as the same double, and valid JSON for every finite one.
std::string json_value(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  return fmt::format("{}", value);
}
std::string json_value(int64_t value) {
  return std::to_string(value);
}

bool ends_in_partial_line(int fd) {
  const off_t size = ::lseek(fd, 0, SEEK_END);
  char last = '\n';
  return size > 0 && ::pread(fd, &last, 1, size - 1) == 1 && last != '\n';
}

}  // namespace

std::string json_line(const LineHead& head, const JsonFields& fields) {
  std::string line = fmt::format("{{\"step\": {}, \"time\": {:.6f}, \"run_id\": {}", head.step,
                                 head.unix_seconds, json_value(head.run_id));
  for (const auto& [key, value] : fields)
    line += fmt::format(", {}: {}", json_value(key),
                        std::visit([](const auto& v) { return json_value(v); }, value));
  return line + "}\n";
}

JsonlWriter::JsonlWriter(const std::filesystem::path& path) : path_(path) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  constexpr int kFlags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  require_place_for_file(path);
  fd_ = ::open(path.c_str(), kFlags, 0644);
  if (fd_ < 0)
    throw_pre_checkpoint("{}: cannot open the metrics file: {}", printable(path), errno_text(errno));
  if (ends_in_partial_line(fd_)) append("\n");
}

JsonlWriter::~JsonlWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void JsonlWriter::append(const std::string& line) {
  const std::lock_guard lock(mutex_);
  if (fd_ < 0) return;
  ssize_t written = 0;
  do {
    written = ::write(fd_, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) return;
  log_warning("{}: write failed ({}): no more metrics are written there", path_.string(),
              written < 0 ? std::strerror(errno) : "disk full");
  ::close(fd_);
  fd_ = -1;
}

}  // namespace hyperion::metrics
