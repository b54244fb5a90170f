#include "checkpoint/storage/shard_reader.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "base/failpoint.h"
#include "base/hash.h"

namespace hyperion {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kReadAhead = uint64_t{16} << 20;  // bytes asked of the disk before they are needed

// Opens folder/name, which must not lead out of the folder.
Descriptor open_inside(const fs::path& folder, const std::string& name, int flags) {
  if (!is_plain_name(name))
    throw_data("{}: \"{:.100}\" is not the name of a file in this folder", printable(folder),
               printable(name));
  const Descriptor parent(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  Descriptor file;
  if (parent) {
    open_how how{};
    how.flags = static_cast<uint64_t>(O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags);  // a pipe must not block
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
    file = Descriptor(static_cast<int>(::syscall(SYS_openat2, parent.get(), name.c_str(), &how, sizeof how)));
    if (!file && (errno == ENOSYS || errno == EPERM))
      file = Descriptor(::openat(parent.get(), name.c_str(), static_cast<int>(how.flags) | O_NOFOLLOW));
  }
  if (!file && errno != EINVAL)
    throw_data("{}: cannot be opened: {}{}", printable(folder / name), errno_text(errno),
               errno == ELOOP ? ": links are not followed" : "");
  return file;
}

Descriptor open_file(const fs::path& folder, const std::string& name, Links links) {
  if (links == Links::kRefuse) return open_inside(folder, name, 0);
  Descriptor file(::open((folder / name).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw_data("{}: cannot be opened: {}", printable(folder / name), errno_text(errno));
  return file;
}

uint64_t regular_size(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw_data("{}: cannot be examined: {}", path, errno_text(errno));
  if (!S_ISREG(info.st_mode)) throw_data("{}: is not a regular file", path);
  return static_cast<uint64_t>(info.st_size);
}

void require_record(const std::string& path, uint64_t size, const FileRecord& record, uint64_t block_bytes) {
  if (size != record.bytes)
    throw_data("{}: has {} bytes, {} were written: the file was truncated or replaced", path, size,
               record.bytes);
  const uint64_t blocks = size / block_bytes + (size % block_bytes != 0 ? 1 : 0);
  if (record.blocks.size() != blocks)
    throw_data("{}: has {} checksums, its {} bytes need {}", path, record.blocks.size(), size, blocks);
}

// Reads [offset, offset + bytes); `room`: direct input may be asked for more than the file has.
void read_exactly(int fd, const std::string& path, uint64_t offset, std::byte* out, uint64_t bytes,
                  uint64_t room) {
  for (uint64_t done = 0; done < bytes;) {
    const FaultEffect fault = failpoint("file.read", path);
    const uint64_t half = (room - done) / 2 / kDirectAlignment * kDirectAlignment + kDirectAlignment;
    const uint64_t asked = fault.short_write ? std::min(half, room - done) : room - done;
    ssize_t n = -1;
    if ((errno = fault.error_number) == 0)
      n = ::pread(fd, out + done, asked, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EINVAL) {
      const int flags = ::fcntl(fd, F_GETFL);
      if ((flags & O_DIRECT) != 0 && ::fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0) continue;
      errno = EINVAL;
    }
    if (n < 0) throw_data("{}: cannot be read at byte {}: {}", path, offset + done, errno_text(errno));
    if (n == 0) throw_data("{}: ends at byte {} while it is read: it was truncated", path, offset + done);
    if (fault.flip) out[done] ^= std::byte{1};
    done += static_cast<uint64_t>(n);
  }
}

// A file with what is known of its blocks.
struct BlockFile {
  int fd;
  const std::string& path;
  const FileRecord& record;
  uint64_t block_bytes;
};

void check_block(const BlockFile& file, uint64_t block, const std::byte* data, uint64_t bytes) {
  const uint64_t actual = hash_bytes(data, bytes);
  if (actual != file.record.blocks[block])
    throw_data("{}: bytes {} to {} are damaged: their checksum is {:016x}, {:016x} was written", file.path,
               block * file.block_bytes, block * file.block_bytes + bytes, actual, file.record.blocks[block]);
}

// One block into `buffer`, compared with the record. Returns its bytes.
uint64_t load_block(const BlockFile& file, uint64_t block, BlockBuffer& buffer) {
  const uint64_t offset = block * file.block_bytes;
  const uint64_t bytes = std::min(file.block_bytes, file.record.bytes - offset);
  const uint64_t room = (bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
  read_exactly(file.fd, file.path, offset, buffer.data(), bytes, room);
  check_block(file, block, buffer.data(), bytes);
  return bytes;
}

// Calls take(block, data, bytes) with the blocks [first, last), verified, in any order and from two threads:
// while one hashes and copies, the other waits for the disk.
template <typename Take>
void for_each_block(const BlockFile& file, uint64_t first, uint64_t last, const Take& take) {
  std::atomic<uint64_t> next{first};
  std::mutex mutex;
  std::exception_ptr error;  // guarded by mutex
  const auto work = [&] {
    try {
      BlockBuffer buffer(file.block_bytes);
      for (uint64_t block = next++; block < last; block = next++)
        take(block, buffer.data(), load_block(file, block, buffer));
    } catch (...) {
      next = last;  // the other one stops
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  std::thread helper;
  try {
    if (last > first + 1) helper = std::thread(work);
  } catch (const std::system_error&) {  // no thread to be had: this one does it all
  }
  work();
  if (helper.joinable()) helper.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace

ShardReader::ShardReader(const fs::path& folder, const std::string& name, const FileRecord* record,
                         uint64_t block_bytes, Links links)
    : path_(printable(folder / name)), block_bytes_(block_bytes) {
  // What is verified is read in whole blocks, for which the page cache is a detour.
  if (record != nullptr && links == Links::kRefuse) file_ = open_inside(folder, name, O_DIRECT);
  if (!file_) file_ = open_file(folder, name, links);
  if (!file_) throw_data("{}: cannot be opened", path_);
  size_ = regular_size(file_.get(), path_);
  if (record == nullptr) return;
  require_record(path_, size_, *record, block_bytes);
  record_ = *record;
}

void ShardReader::read(uint64_t offset, void* out, uint64_t bytes) {
  require_inside(offset, bytes);
  auto* to = static_cast<std::byte*>(out);
  if (!record_) return read_unverified(offset, to, bytes);
  const uint64_t end = offset + bytes;
  while (offset < end) {
    const uint64_t block = offset / block_bytes_, skip = offset % block_bytes_;
    // First block that is not whole in the request; the file's last one may be short.
    const uint64_t whole_until = end == size_ ? record_->blocks.size() : end / block_bytes_;
    uint64_t n = std::min(end - offset, block_bytes_ - skip);
    if (skip == 0 && whole_until > block + 1) {
      n = std::min(end, whole_until * block_bytes_) - offset;
      for_each_block({file_.get(), path_, *record_, block_bytes_}, block, whole_until,
                     [&](uint64_t b, const std::byte* data, uint64_t length) {
                       std::memcpy(to + (b - block) * block_bytes_, data, length);
                     });
    } else {
      std::memcpy(to, held_block(block) + skip, n);
    }
    offset += n;
    to += n;
  }
}

const std::byte* ShardReader::held_block(uint64_t block) {
  if (block != held_block_) {
    if (!held_) held_ = std::make_unique<BlockBuffer>(block_bytes_);
    held_block_ = UINT64_MAX;  // until the block in it is known to be right
    load_block({file_.get(), path_, *record_, block_bytes_}, block, *held_);
    held_block_ = block;
  }
  return held_->data();
}

// Piece by piece, and the disk is asked for what comes next before it is needed.
void ShardReader::read_unverified(uint64_t offset, std::byte* out, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t n = std::min(bytes - done, block_bytes_);
    const uint64_t ahead = std::min(bytes - done - n, kReadAhead);
    if (ahead > 0)
      ::posix_fadvise(file_.get(), static_cast<off_t>(offset + done + n), static_cast<off_t>(ahead),
                      POSIX_FADV_WILLNEED);
    read_exactly(file_.get(), path_, offset + done, out + done, n, n);
    done += n;
  }
}

void verify_file(const fs::path& folder, const FileRecord& record, uint64_t block_bytes, bool direct) {
  const std::string path = printable(folder / record.name);
  Descriptor file = direct ? open_inside(folder, record.name, O_DIRECT) : Descriptor();
  if (!file) {  // no direct input here
    if (direct) evict(folder / record.name);
    file = open_inside(folder, record.name, 0);
  }
  if (!file) throw_data("{}: cannot be opened", path);
  require_record(path, regular_size(file.get(), path), record, block_bytes);
  for_each_block({file.get(), path, record, block_bytes}, 0, record.blocks.size(),
                 [](uint64_t, const std::byte*, uint64_t) {});
}

void evict(const fs::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw_data("{}: cannot be opened: {}", printable(path), errno_text(errno));
  if (::fsync(file.get()) != 0) throw_data("{}: cannot be flushed: {}", printable(path), errno_text(errno));
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace hyperion
