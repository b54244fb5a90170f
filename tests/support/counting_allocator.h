// Counts what libtorch holds on the host.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include <c10/core/Allocator.h>

namespace hyperion {

// Hands requests on to the allocator that was there and adds up the bytes in use. libtorch also asks for raw
// memory (raw_allocate), so data and context are the same pointer. One at a time.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator& inner) : inner_(inner) { current_ = this; }

  int64_t live() const { return live_; }
  // The most bytes in use at once since the last call of start_peak().
  int64_t peak() const { return peak_; }
  void start_peak() {
    const std::lock_guard lock(mutex_);
    peak_ = live_.load();
  }

  c10::DataPtr allocate(size_t bytes) override {
    void* const data = inner_.raw_allocate(bytes);
    const std::lock_guard lock(mutex_);
    live_ += sizes_[data] = static_cast<int64_t>(bytes);
    peak_ = std::max<int64_t>(peak_, live_);
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* data) {
    {
      const std::lock_guard lock(current_->mutex_);
      const auto known = current_->sizes_.extract(data);
      if (!known.empty()) current_->live_ -= known.mapped();
    }
    current_->inner_.raw_deallocate(data);
  }

  static inline CountingAllocator* current_ = nullptr;
  c10::Allocator& inner_;
  std::mutex mutex_;  // guards sizes_ and changes of the counts
  std::map<void*, int64_t> sizes_;
  std::atomic<int64_t> live_ = 0, peak_ = 0;
};

}  // namespace hyperion
