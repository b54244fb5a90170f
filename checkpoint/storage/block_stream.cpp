#include "checkpoint/storage/block_stream.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/error.h"
#include "base/failpoint.h"
#include "base/hash.h"

namespace hyperion::checkpoint {
namespace {

constexpr size_t kThreads = 2;  // while one hashes, the other waits for the disk
constexpr size_t kSlots = 4;    // blocks in memory: the consumer's, one per thread, and one that is ready

uint64_t aligned(uint64_t bytes) {
  return (bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
}

}  // namespace

void read_exactly(int fd, const std::string& path, uint64_t offset, std::byte* out, uint64_t bytes,
                  uint64_t capacity) {
  for (uint64_t done = 0; done < bytes;) {
    const FaultEffect fault = failpoint("file.read", path);
    const uint64_t half = (capacity - done) / 2 / kDirectAlignment * kDirectAlignment + kDirectAlignment;
    const uint64_t asked = fault.short_write ? std::min(half, capacity - done) : capacity - done;
    errno = fault.error_number;
    ssize_t n = -1;
    if (errno == 0) n = ::pread(fd, out + done, asked, static_cast<off_t>(offset + done));
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

uint64_t read_block(const BlockFile& file, uint64_t block, std::byte* out) {
  const uint64_t offset = block * kBlockBytes;
  const uint64_t bytes = std::min(kBlockBytes, file.record.bytes - offset);
  read_exactly(file.fd, file.path, offset, out, bytes, aligned(bytes));
  const uint64_t actual = hash_bytes(out, bytes), written = file.record.blocks[block];
  if (actual != written)
    throw_data("{}: bytes {} to {} are damaged: their checksum is {:016x}, {:016x} was written", file.path,
               offset, offset + bytes, actual, written);
  return bytes;
}

BlockStream::BlockStream(const BlockFile& file, std::vector<uint64_t> blocks)
    : file_(file), blocks_(std::move(blocks)), slots_(std::clamp<size_t>(blocks_.size(), 1, kSlots)) {
  try {
    while (threads_.size() < std::min(kThreads, blocks_.size()))
      threads_.emplace_back([this] { read_ahead(); });
  } catch (
      const std::system_error&) {  // out of threads: those that started read everything, or the consumer does
  }
}

BlockStream::~BlockStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void BlockStream::fill(Slot& slot, size_t place) {
  slot.error = nullptr;
  try {
    slot.data = {slot.block.data(), read_block(file_, blocks_[place], slot.block.data())};
  } catch (...) {
    slot.error = std::current_exception();
  }
}

void BlockStream::read_ahead() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(
        lock, [&] { return stop_ || claimed_ == blocks_.size() || claimed_ < released_ + slots_.size(); });
    if (stop_ || claimed_ == blocks_.size()) return;
    const size_t place = claimed_++;
    Slot& slot = slots_[place % slots_.size()];
    slot.ready = false;
    lock.unlock();
    fill(slot, place);
    lock.lock();
    slot.ready = true;
    changed_.notify_all();
  }
}

std::span<const std::byte> BlockStream::take() {
  if (done()) throw_bug("{}: no block is left to take", file_.path);
  const size_t place = taken_++;
  Slot& slot = slots_[place % slots_.size()];
  if (threads_.empty()) {
    fill(slot, place);
  } else {
    std::unique_lock lock(mutex_);
    released_ = place;
    changed_.notify_all();
    changed_.wait(lock, [&] { return claimed_ > place && slot.ready; });
  }
  if (slot.error) std::rethrow_exception(slot.error);
  return slot.data;
}

}  // namespace hyperion::checkpoint
