#include "base/shared_segment.h"

#include <cerrno>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"

namespace hyperion {
namespace {

constexpr size_t kSize = sizeof(SharedSegment::Header) + SharedSegment::kCapacity;
static_assert(sizeof(SharedSegment::Header) % 64 == 0 && SharedSegment::kCapacity % 64 == 0);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

void* map_segment(int fd, size_t size) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

std::optional<SharedSegment> SharedSegment::create(size_t extra) {
  const int fd = memfd_create("hyperion", MFD_CLOEXEC);
  if (fd < 0) return std::nullopt;
  SharedSegment segment(fd, nullptr, kSize + extra);
  if (ftruncate(fd, static_cast<off_t>(segment.size_)) == 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
    segment.memory_ = map_segment(fd, segment.size_);
  if (segment.memory_ == nullptr) return std::nullopt;
  return segment;  // fresh pages are zero, and so are all counters
}

std::optional<SharedSegment> SharedSegment::open(int pid, int fd, size_t extra) {
  const int own = ::open(fmt::format("/proc/{}/fd/{}", pid, fd).c_str(), O_RDWR | O_CLOEXEC);
  if (own < 0) return std::nullopt;
  const size_t size = kSize + extra;
  void* memory = lseek(own, 0, SEEK_END) == static_cast<off_t>(size) ? map_segment(own, size) : nullptr;
  if (memory == nullptr) {
    close(own);
    return std::nullopt;
  }
  return SharedSegment(own, memory, size);
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), memory_(std::exchange(other.memory_, nullptr)), size_(other.size_) {}

SharedSegment::~SharedSegment() {
  if (memory_ != nullptr) munmap(memory_, size_);
  if (fd_ >= 0) close(fd_);
}

bool SharedSegment::owner_ended() const {
  if (flock(fd_, LOCK_SH | LOCK_NB) != 0) return false;
  flock(fd_, LOCK_UN);
  return true;
}

void wait_for_change(const std::atomic<uint32_t>& counter, uint32_t seen) {
  for (int i = 0; i < 200; ++i) {  // a few microseconds: a peer that is about to write needs no system call
    if (counter.load(std::memory_order_acquire) != seen) return;
    __builtin_ia32_pause();
  }
  const timespec limit{0, 100'000'000};
  syscall(SYS_futex, &counter, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void wake_all(const std::atomic<uint32_t>& counter) {
  syscall(SYS_futex, &counter, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace hyperion
