#include "base/shared_segment.h"

#include <ctime>

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "base/processor.h"

namespace hyperion {
namespace {

constexpr size_t kSize = sizeof(SharedSegment::Header) + SharedSegment::kCapacity;
static_assert(sizeof(SharedSegment::Header) % 64 == 0 && SharedSegment::kCapacity % 64 == 0);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace

void SharedSegment::Unmap::operator()(void* memory) const {
  munmap(memory, size);
}

std::optional<SharedSegment> SharedSegment::map(Descriptor fd, size_t size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return std::nullopt;
  return SharedSegment(std::move(fd), memory, size);
}

std::optional<SharedSegment> SharedSegment::create(size_t extra) {
  Descriptor fd(memfd_create("hyperion", MFD_CLOEXEC));
  const size_t size = kSize + extra;
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(size)) != 0 || flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    return std::nullopt;
  return map(std::move(fd), size);  // fresh pages are zero, and so are all counters
}

std::optional<SharedSegment> SharedSegment::open(int pid, int fd, size_t extra) {
  Descriptor file(::open(fmt::format("/proc/{}/fd/{}", pid, fd).c_str(), O_RDWR | O_CLOEXEC));
  const size_t size = kSize + extra;
  if (!file || lseek(file.get(), 0, SEEK_END) != static_cast<off_t>(size)) return std::nullopt;
  return map(std::move(file), size);
}

bool SharedSegment::owner_ended() const {
  if (flock(fd_.get(), LOCK_SH | LOCK_NB) != 0) return false;
  flock(fd_.get(), LOCK_UN);
  return true;
}

void wait_for_change(const std::atomic<uint32_t>& counter, uint32_t seen) {
  for (int i = 0; i < 200; ++i) {  // a few microseconds: a peer that is about to write needs no system call
    if (counter.load(std::memory_order_acquire) != seen) return;
    processor::relax();
  }
  const timespec limit{0, 100'000'000};
  syscall(SYS_futex, &counter, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void wake_all(const std::atomic<uint32_t>& counter) {
  syscall(SYS_futex, &counter, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace hyperion
