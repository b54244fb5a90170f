#include "trainer/metrics/metrics_jsonl.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
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

constexpr int kFlags = O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;

// The run that wrote the last complete head of a line; "" where there is none. The file may come from
// anywhere: an id is digits and dashes.
std::string last_run(int fd) {
  constexpr off_t kTail = 64 << 10;
  constexpr std::string_view kKey = "\"run_id\": \"";
  const off_t size = ::lseek(fd, 0, SEEK_END);
  std::string tail(static_cast<size_t>(std::clamp<off_t>(size, 0, kTail)), '\0');
  const ssize_t n = ::pread(fd, tail.data(), tail.size(), std::max<off_t>(size - kTail, 0));
  tail.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  const size_t at = tail.rfind(kKey);
  if (at == tail.npos) return "";
  const std::string rest = tail.substr(at + kKey.size(), 100);
  const size_t end = rest.find_first_not_of("0123456789-");
  return end == rest.npos || rest[end] != '"' ? "" : rest.substr(0, end);
}

// Holds the file until it is closed.
void lock_file(const Descriptor& file, const std::filesystem::path& path) {
  if (::flock(file.get(), LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  if (error != EWOULDBLOCK) {
    log_warning("{}: this file system knows no locks ({}): that no other run writes here is not checked",
                printable(path), errno_text(error));
    return;
  }
  const std::string run = last_run(file.get());
  throw_config(
      "{}: {} is training and writes its metrics here: stop it, or give this run another folder "
      "(job.dump_folder)",
      printable(path), run.empty() ? "another run" : fmt::format("run {}", run));
}

// The first of metrics-RUN.jsonl, metrics-RUN-2.jsonl ... that does not exist is the file's new name.
void rename_to_run(const std::filesystem::path& path, const std::string& run) {
  const std::string name = fmt::format("{}-{}", path.stem().string(), run.empty() ? "earlier" : run);
  std::error_code error;
  std::filesystem::path kept;
  for (int number = 1; number == 1 || std::filesystem::exists(kept, error); ++number)
    kept = path.parent_path() / fmt::format("{}{}{}", name, number == 1 ? "" : fmt::format("-{}", number),
                                            path.extension().string());
  std::filesystem::rename(path, kept, error);
  if (error)
    throw_pre_checkpoint("{}: the metrics of an earlier run cannot be renamed to {}: {}", printable(path),
                         printable(kept), error.message());
  log_info("{}: the lines of {}, which this run does not continue, are in {} now", printable(path),
           run.empty() ? "an earlier run" : fmt::format("run {}", run), printable(kept));
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

void require_no_writer(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), kFlags));
  if (file) lock_file(file, path);
}

JsonlWriter::JsonlWriter(const std::filesystem::path& path, EarlierLines earlier) : path_(path) {
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  const auto open_locked = [&] {
    while (true) {
      require_place_for_file(path);
      Descriptor file(::open(path.c_str(), kFlags | O_CREAT, 0644));
      if (!file)
        throw_pre_checkpoint("{}: cannot open the metrics file: {}", printable(path), errno_text(errno));
      lock_file(file, path);
      if (is_same_file(path, file)) return file;  // else another run has renamed it meanwhile
    }
  };
  file_ = open_locked();
  if (earlier == EarlierLines::kOfOthers && ::lseek(file_.get(), 0, SEEK_END) > 0) {
    rename_to_run(path, last_run(file_.get()));
    file_ = open_locked();
  }
  if (ends_in_partial_line(file_.get())) append("\n");
}

void JsonlWriter::append(const std::string& line) {
  const std::lock_guard lock(mutex_);
  if (!file_) return;
  ssize_t written = 0;
  do {
    written = ::write(file_.get(), line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) return;
  log_warning("{}: write failed ({}): no more metrics are written there", path_.string(),
              written < 0 ? std::strerror(errno) : "disk full");
  file_ = Descriptor();
}

}  // namespace hyperion::metrics
