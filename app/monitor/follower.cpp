#include "app/monitor/follower.h"

#include <algorithm>
#include <cerrno>

#include <sys/stat.h>
#include <unistd.h>

#include "base/counted.h"
#include "base/files.h"
#include "base/printable.h"

namespace hyperion::monitor {
namespace fs = std::filesystem;
namespace {

// Reads up to `bytes` at `offset`; less where the file has become shorter.
std::string bytes_at(const Descriptor& file, const fs::path& path, uint64_t offset, size_t bytes) {
  std::string block(bytes, '\0');
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n =
        ::pread(file.get(), block.data() + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_data("{}: read failed: {}", printable(path), errno_text(errno));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  block.resize(done);
  return block;
}

}  // namespace

RunFollower::RunFollower(fs::path folder, size_t max_buckets)
    : folder_(std::move(folder)), records_(folder_ / "runs"), max_buckets_(max_buckets) {
  fs::path clean = folder_.lexically_normal();
  if (!clean.has_filename()) clean = clean.parent_path();  // "out/rank_1/"
  std::error_code error;
  if (clean.filename().string().starts_with("rank_") && !fs::exists(records_, error))
    records_ = folder_ / ".." / "runs";
  forget();
}

void RunFollower::forget() {
  report::RunStarts starts;
  if (!state_.runs.empty()) starts = std::move(state_.runs.front().starts);
  state_ = {};
  state_.runs.emplace_back();
  state_.runs.front().name = folder_.string();
  state_.runs.front().history = report::RunHistory(max_buckets_);
  state_.runs.front().starts = std::move(starts);
  reader_ = {};
  reader_.set_starts(state_.run().starts.starts);
  file_ = {};
  offset_ = 0;
  mark_.clear();
  begun_.clear();
  too_long_ = false;
  last_training_.reset();
  run_id_.clear();
}

// Reads the records again after each start: the folder has a new entry then, and rows have a new run id.
void RunFollower::read_records() {
  std::error_code error;
  const auto time = fs::last_write_time(records_, error);
  if (error || (time == records_time_ && run_id_ == run_id_of_records_)) return;
  records_time_ = time;
  run_id_of_records_ = run_id_;
  state_.runs.front().starts = report::read_run_starts(records_);
  reader_.set_starts(state_.run().starts.starts);
}

bool RunFollower::refresh(uint64_t max_bytes) {
  const fs::path path = folder_ / report::kMetricsName;
  try {
    read_records();
    if (!name_exists(path)) {  // until the next start makes one, the last one's rows stay
      state_.waiting = state_.run().lines == 0;
      return false;
    }
    const bool more = read_new(max_bytes);
    state_.waiting = false;
    state_.problem.clear();
    return more;
  } catch (const Error& error) {
    std::error_code ignored;
    if (!fs::exists(fs::symlink_status(path, ignored))) return false;  // renamed since it was looked for
    if (state_.run().lines == 0) throw;
    state_.problem = error.what();
    return false;
  }
}

bool RunFollower::read_new(uint64_t max_bytes) {
  const fs::path path = folder_ / report::kMetricsName;
  InputFile opened(path);
  const uint64_t size = opened.size();
  const Descriptor file = opened.release();
  struct stat now {};
  if (::fstat(file.get(), &now) != 0)
    throw_data("{}: cannot be examined: {}", printable(path), errno_text(errno));
  const std::pair<dev_t, ino_t> identity(now.st_dev, now.st_ino);
  if (offset_ > 0 && (identity != file_ || size < offset_ ||
                      bytes_at(file, path, offset_ - mark_.size(), mark_.size()) != mark_))
    forget();
  file_ = identity;

  report::ReportRun& run = state_.runs.front();
  run.torn_end = false;
  const uint64_t end = std::min(size, offset_ + max_bytes);
  while (offset_ < end) {
    const std::string block = bytes_at(file, path, offset_, std::min<uint64_t>(end - offset_, 1 << 20));
    if (block.empty()) break;
    offset_ += block.size();
    mark_ += block.substr(block.size() - std::min(block.size(), kMark));
    mark_.erase(0, mark_.size() - std::min(mark_.size(), kMark));
    take_lines(block);
  }
  if (offset_ == size) take_complete_end();
  state_.bytes = size;
  state_.bytes_read = offset_;
  if (run.tags.size() != reader_.parser().tags().size()) run.tags = reader_.parser().tags();
  run.tags_left_out = reader_.parser().tags_left_out();
  return offset_ == end && end < size;
}

void RunFollower::take_lines(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    const std::string_view part = bytes.substr(0, newline);
    bytes.remove_prefix(newline == bytes.npos ? bytes.size() : newline + 1);
    too_long_ |= begun_.size() + part.size() > kMaxLine;
    if (newline == std::string_view::npos) {
      too_long_ ? begun_.clear() : static_cast<void>(begun_.append(part));
      return;
    }
    if (too_long_) {
      ++state_.runs.front().lines;
      ++state_.runs.front().bad_lines;
    } else if (begun_.empty()) {
      take_line(part);
    } else {
      take_line(begun_.append(part));
    }
    begun_.clear();
    too_long_ = false;
  }
}

void RunFollower::take_line(std::string_view line) {
  if (line.find_first_not_of(" \t\r") == line.npos) return;
  report::ReportRun& run = state_.runs.front();
  ++run.lines;
  const auto row = reader_.row(line);
  if (!row) {
    ++run.bad_lines;
    return;
  }
  run.history.add(*row);
  if (!row->run_id.empty()) run_id_ = row->run_id;
  if (row->kind != report::RowKind::kTraining) return;
  if (last_training_ && last_training_->run_id == row->run_id && last_training_->step < row->step)
    state_.line_seconds = *row->value(report::kTimeTag) - *last_training_->value(report::kTimeTag);
  last_training_ = *row;
}

// The last line may be whole and lack its line feed. The rest of a torn line is no JSON object.
void RunFollower::take_complete_end() {
  report::ReportRun& run = state_.runs.front();
  run.torn_end = too_long_ || !begun_.empty();
  if (begun_.empty() || !reader_.row(begun_)) return;
  take_line(std::exchange(begun_, {}));
  run.torn_end = false;
}

void require_rows(const report::ReportRun& run, const char* command) {
  const std::string file = printable(fs::path(run.name) / report::kMetricsName);
  if (run.lines == 0)
    throw_config("{}: {}: holds no line yet: the first logged step writes one", command, file);
  if (run.lines == run.bad_lines)
    throw_data("{}: holds {} and no row of metrics (a JSON object with \"step\" and \"time\")", file,
               counted(run.lines, "line"));
}

}  // namespace hyperion::monitor
