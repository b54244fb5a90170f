#include "checkpoint/staging_pool.h"

#include <algorithm>
#include <system_error>

#include <pthread.h>
#include <sched.h>

#include "base/failpoint.h"

namespace hyperion::checkpoint {

void StagingPool::reserve(uint64_t bytes) {
  stop_touching();
  if (memory_ && bytes <= bytes_) return;
  release();
  if (failpoint("ckpt.pool").error_number != 0) throw std::bad_alloc();
  memory_ = mover_.allocate(std::max<uint64_t>(bytes, 1));  // CUDA returns no address for 0 bytes
  bytes_ = bytes;
}

void StagingPool::release() {
  memory_.reset();
  bytes_ = 0;
}

void StagingPool::touch_in_background() {
  if (thread_.joinable() || bytes_ == 0 || mover_.allocates_pinned()) return;
  stop_ = false;
  try {
    thread_ = std::thread([this, memory = memory_.get(), bytes = bytes_] {
      const sched_param none{};
      ::pthread_setschedparam(::pthread_self(), SCHED_IDLE, &none);
      constexpr uint64_t kPage = 4096;
      for (uint64_t at = 0; at < bytes && !stop_; at += kPage)
        *static_cast<volatile std::byte*>(memory + at) = std::byte{0};
    });
  } catch (const std::system_error&) {  // out of threads: the first save touches the pages by copying
  }
}

void StagingPool::stop_touching() {
  if (!thread_.joinable()) return;
  stop_ = true;
  thread_.join();
}

}  // namespace hyperion::checkpoint
