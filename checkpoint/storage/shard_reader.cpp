#include "checkpoint/storage/shard_reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
#include "base/printable.h"
#include "base/substitute.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kReadAhead = uint64_t{16} << 20;  // bytes

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
  if (file || errno == EINVAL) return file;
  const std::string problem =
      fmt::format("{}: cannot be opened: {}{}", printable(folder / name), errno_text(errno),
                  errno == ELOOP ? ": links are not followed" : "");
  if (errno == EACCES || errno == EPERM) throw PermissionDenied(ExitCode::kBadData, problem);
  throw_data("{}", problem);
}

void require_record(const std::string& path, uint64_t size, const FileRecord& record) {
  if (size != record.bytes)
    throw_data("{}: has {} bytes, {} were written: the file was truncated or replaced", path, size,
               record.bytes);
  const uint64_t blocks = size / kBlockBytes + (size % kBlockBytes != 0 ? 1 : 0);
  if (record.blocks.size() != blocks)
    throw_data("{}: has {} checksums, its {} bytes need {}", path, record.blocks.size(), size, blocks);
}

// Prefetched blocks [first, last).
BlockStream stream_of(const BlockFile& file, uint64_t first, uint64_t last) {
  std::vector<uint64_t> blocks(last - first);
  std::iota(blocks.begin(), blocks.end(), first);
  return BlockStream(file, std::move(blocks));
}

std::byte* append(std::byte* to, std::span<const std::byte> bytes) {
  std::memcpy(to, bytes.data(), bytes.size());
  return to + bytes.size();
}

}  // namespace

ShardReader::ShardReader(const fs::path& folder, const std::string& name, const FileRecord* record,
                         Links links)
    : path_(printable(folder / name)) {
  // Verified reads are full blocks, which gain nothing from the page cache.
  if (links == Links::kFollow) {
    InputFile file(folder / name);
    size_ = file.size();
    file_ = file.release();
  } else {
    if (record != nullptr) file_ = open_inside(folder, name, O_DIRECT);
    if (!file_) file_ = open_inside(folder, name, 0);
    if (!file_) throw_data("{}: cannot be opened", path_);
    size_ = regular_size(file_.get(), folder / name);
  }
  if (record == nullptr || record->bytes != size_) {
    // A safetensors file may begin with the bytes of UTF-16's mark. The open file may require aligned
    // reads.
    const std::string what =
        substitute_of(InputFile(folder / name, links), /*text=*/!name.ends_with(".safetensors"));
    if (!what.empty()) throw_data("{}: {}", path_, what);
  }
  if (record == nullptr) return;
  require_record(path_, size_, *record);
  record_ = *record;
}

void ShardReader::expect(const std::vector<ByteRange>& ranges) {
  if (!record_) return;
  std::vector<uint64_t> blocks;
  for (const ByteRange& range : ranges) {
    require_inside(range.offset, range.bytes);
    if (range.bytes == 0) continue;
    uint64_t block = range.offset / kBlockBytes;
    if (!blocks.empty()) block = std::max(block, blocks.back() + 1);
    for (; block <= (range.offset + range.bytes - 1) / kBlockBytes; ++block) blocks.push_back(block);
  }
  expected_ = std::make_unique<BlockStream>(file(), std::move(blocks));
  held_ = {};
}

void ShardReader::read(uint64_t offset, void* out, uint64_t bytes) {
  require_inside(offset, bytes);
  auto* to = static_cast<std::byte*>(out);
  if (!record_) return read_unverified(offset, to, bytes);
  for (uint64_t end = offset + bytes; offset < end;) {
    const uint64_t block = offset / kBlockBytes, skip = offset % kBlockBytes;
    // The first block that the request does not cover completely; the file's last block may be short.
    const uint64_t full_until = end == size_ ? record_->blocks.size() : end / kBlockBytes;
    uint64_t n = std::min(end - offset, kBlockBytes - skip);
    if (skip == 0 && full_until > block + 1 && !is_expected(block)) {
      n = std::min(end, full_until * kBlockBytes) - offset;
      std::byte* at = to;
      for (BlockStream stream = stream_of(file(), block, full_until); !stream.done();)
        at = append(at, stream.take());
    } else {
      append(to, held_block(block).subspan(skip, n));
    }
    offset += n;
    to += n;
  }
}

void ShardReader::verify() {
  for (BlockStream stream = stream_of(file(), 0, record_->blocks.size()); !stream.done();) stream.take();
}

bool ShardReader::is_expected(uint64_t block) {
  // Expected blocks that are skipped are dropped.
  while (expected_ && !expected_->done() && expected_->next_block() < block) {
    held_ = {};
    expected_->take();
  }
  return expected_ && !expected_->done() && expected_->next_block() == block;
}

std::span<const std::byte> ShardReader::held_block(uint64_t block) {
  if (block == held_block_ && !held_.empty()) return held_;
  held_ = {};  // empty until the block is verified
  if (is_expected(block)) {
    held_ = expected_->take();
  } else {
    if (!buffer_) buffer_ = std::make_unique<FileBlock>();
    held_ = {buffer_->data(), read_block(file(), block, buffer_->data())};
  }
  held_block_ = block;
  return held_;
}

void ShardReader::will_read(uint64_t offset, uint64_t bytes) {
  if (!record_)
    ::posix_fadvise(file_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

// Reads in pieces, with prefetch.
void ShardReader::read_unverified(uint64_t offset, std::byte* out, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t n = std::min(bytes - done, kBlockBytes);
    const uint64_t ahead = std::min(bytes - done - n, kReadAhead);
    if (ahead > 0)
      ::posix_fadvise(file_.get(), static_cast<off_t>(offset + done + n), static_cast<off_t>(ahead),
                      POSIX_FADV_WILLNEED);
    read_exactly(file_.get(), path_, offset + done, out + done, n, n);
    done += n;
  }
}

void verify_file(const fs::path& folder, const FileRecord& record) {
  evict(folder / record.name);  // needed without direct I/O
  ShardReader(folder, record.name, &record).verify();
}

void evict(const fs::path& path) {
  const Descriptor file = InputFile(path).release();
  if (::fsync(file.get()) != 0) throw_data("{}: cannot be flushed: {}", printable(path), errno_text(errno));
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace hyperion::checkpoint
