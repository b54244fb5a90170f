// Adds up the bytes that this rank sends, per group and operation. Fed by an observer of the communicators
// (parallel::CommObserver).
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace hyperion {

// Safe to use from several threads.
class CommLedger {
 public:
  struct Entry {
    int64_t calls = 0;
    int64_t bytes = 0;
  };
  using Key = std::pair<std::string, std::string>;  // group name ("fsdp/0"), operation ("all_gather")

  void add(const std::string& group, const std::string& operation, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[{group, operation}];
    ++entry.calls;
    entry.bytes += bytes;
  }
  // Zeros when nothing was counted.
  Entry entry(const std::string& group, const std::string& operation) const {
    const std::map<Key, Entry> all = entries();
    const auto found = all.find({group, operation});
    return found == all.end() ? Entry{} : found->second;
  }
  std::map<Key, Entry> entries() const {
    const std::lock_guard lock(mutex_);
    return entries_;
  }
  int64_t total_bytes() const {
    int64_t total = 0;
    for (const auto& [key, entry] : entries()) total += entry.bytes;
    return total;
  }
  void reset() {
    const std::lock_guard lock(mutex_);
    entries_.clear();
  }

 private:
  mutable std::mutex mutex_;
  std::map<Key, Entry> entries_;
};

}  // namespace hyperion
