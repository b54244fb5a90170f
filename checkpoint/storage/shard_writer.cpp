#include "checkpoint/storage/shard_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/error.h"
#include "base/failpoint.h"
#include "base/hash.h"
#include "base/printable.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

std::string_view remedy_for(int error) {
  switch (error) {
    case ENOSPC:
      return "; free some space or inodes (checkpoint.keep_latest_k keeps fewer) or name another folder";
    case EDQUOT:
      return "; the quota of this user or project is used up";
    case EFBIG:
      return "; the limit on the size of a file (ulimit -f) is too small";
    case EMFILE:
    case ENFILE:
      return "; raise the limit on open files (ulimit -n)";
    case EROFS:
    case EACCES:
    case EPERM:
      return "; see to the folder's permissions or name another one";
    case EIO:
      return "; the device or the file server reports a failure: what was written cannot be trusted";
    default:
      return "";
  }
}

int open_new(const fs::path& path, int extra) {
  if (const int error = failpoint("file.open", path.native()).error_number; error != 0) {
    errno = error;
    return -1;
  }
  return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW | extra, 0666);
}

}  // namespace

ShardWriter::ShardWriter(const fs::path& folder, const std::string& name, int rank, uint64_t expected_total)
    : path_(folder / name), rank_(rank), expected_total_(expected_total) {
  if (!is_plain_name(name)) throw_bug("\"{}\" is not the name of a file in a checkpoint", name);
  record_.name = name;
  file_ = Descriptor(open_new(path_, O_DIRECT));
  if (!file_ && errno == EINVAL) {  // the file system does not support O_DIRECT
    direct_ = false;
    ::unlink(path_.c_str());  // some file systems create the file before they refuse
    file_ = Descriptor(open_new(path_, 0));
  }
  if (!file_) {
    const int error = errno;
    throw Error(ExitCode::kSaveFailed, fmt::format("rank {}: cannot make {}: {}{}", rank_, printable(path_),
                                                   errno_text(error), remedy_for(error)));
  }
  durable_step("create", path_);
  blocks_[0] = std::make_unique<FileBlock>();
}

ShardWriter::~ShardWriter() {
  stop_thread();
}

void ShardWriter::fail(const char* what, uint64_t at, uint64_t bytes, int error) const {
  std::string space;
  struct statvfs info {};
  if (error == ENOSPC && ::fstatvfs(file_.get(), &info) == 0)
    space = fmt::format("; needed: {}, free: {}",
                        expected_total_ > bytes
                            ? fmt::format("{} bytes for the whole checkpoint", expected_total_)
                            : fmt::format("at least {} bytes", bytes),
                        info.f_bavail * info.f_frsize);
  throw Error(ExitCode::kSaveFailed,
              fmt::format("rank {}: cannot {} {} at byte {}: {}{}{}", rank_, what, printable(path_), at,
                          errno_text(error), space, remedy_for(error)));
}

void ShardWriter::append(const void* data, uint64_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const uint64_t n = std::min(bytes, kBlockBytes - used_);
    std::memcpy(blocks_[current_]->data() + used_, from, n);
    used_ += n;
    record_.bytes += n;
    from += n;
    bytes -= n;
    if (used_ == kBlockBytes) hand_block_to_thread();
  }
}

void ShardWriter::hash_block() {
  record_.blocks.push_back(hash_bytes(blocks_[current_]->data(), used_));
}

void ShardWriter::hand_block_to_thread() {
  hash_block();
  if (!thread_.joinable()) {
    blocks_[1] = std::make_unique<FileBlock>();
    try {
      thread_ = std::thread([this] { write_loop(); });
    } catch (const std::system_error& error) {
      fail("start a thread to write", 0, 0, error.code().value());
    }
  }
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return error_ || queued_ == nullptr; });
    if (error_) std::rethrow_exception(error_);
    queued_ = blocks_[current_]->data();
    queued_offset_ = record_.bytes - kBlockBytes;
  }
  changed_.notify_all();
  current_ = 1 - current_;
  used_ = 0;
  wait_for_block(blocks_[current_]->data());
}

void ShardWriter::wait_for_block(const std::byte* block) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return error_ || (queued_ != block && written_ != block); });
  if (error_) std::rethrow_exception(error_);
}

void ShardWriter::stop_thread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ShardWriter::write_loop() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queued_ != nullptr || stop_; });
    if (queued_ == nullptr) return;
    written_ = std::exchange(queued_, nullptr);
    const uint64_t offset = queued_offset_;
    lock.unlock();
    std::exception_ptr error;
    try {
      write_block(written_, kBlockBytes, offset);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    written_ = nullptr;
    error_ = error;
    changed_.notify_all();
    if (error) return;
  }
}

void ShardWriter::write_buffered() {
  direct_ = false;
  ::fcntl(file_.get(), F_SETFL, ::fcntl(file_.get(), F_GETFL) & ~O_DIRECT);
}

void ShardWriter::write_block(std::byte* data, uint64_t bytes, uint64_t offset) {
  for (uint64_t done = 0; done < bytes;) {
    if (direct_ && ((offset + done) % kDirectAlignment != 0 || (bytes - done) % kDirectAlignment != 0))
      write_buffered();  // at the end of a file, or after a short write
    const FaultEffect fault = failpoint("file.write", path_.native());
    if (fault.flip) data[done] ^= std::byte{1};
    const uint64_t asked = fault.short_write ? (bytes - done + 1) / 2 : bytes - done;
    errno = fault.error_number;
    ssize_t n = -1;
    if (errno == 0) n = ::pwrite(file_.get(), data + done, asked, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EINVAL && direct_) {
      write_buffered();
      continue;
    }
    if (n <= 0) fail("write", offset + done, bytes - done, n == 0 ? EIO : errno);
    done += static_cast<uint64_t>(n);
  }
  if (!direct_)  // a hint: fsync reports failures
    ::sync_file_range(file_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes),
                      SYNC_FILE_RANGE_WRITE);
}

FileRecord ShardWriter::close() {
  if (thread_.joinable()) {
    for (const auto& block : blocks_) wait_for_block(block->data());
    stop_thread();
  }
  if (used_ > 0) {
    hash_block();
    write_block(blocks_[current_]->data(), used_, record_.bytes - used_);
  }
  // Once fsync has failed, the system may have dropped the pages: a second fsync would only seem to
  // succeed.
  int error = failpoint("file.fsync", path_.native()).error_number;
  if (error == 0 && ::fdatasync(file_.get()) != 0) error = errno;
  if (error != 0) fail("flush", record_.bytes, 0, error);
  durable_step("fsync", path_);
  error = failpoint("file.close", path_.native()).error_number;
  if (::close(file_.release()) != 0 && error == 0 && errno != EINTR)
    error = errno;  // NFS reports late errors here
  if (error != 0) fail("close", record_.bytes, 0, error);
  return std::move(record_);
}

}  // namespace hyperion::checkpoint
