// Adds up the bytes that this rank sends, per group and operation. Fed by an observer of the communicators
// (CommObserver), so that a test can assert what a step sends.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace hyperion::parallel {

// The convention is that of ring algorithms, whatever the backend really does, with W ranks and B bytes in
// the full (gathered) tensor: all-gather and reduce-scatter (W-1)/W * B, all-reduce 2 (W-1)/W * B; a gather
// and a broadcast count each byte once, for the rank that has it. Safe to use from several threads.
class CommLedger {
 public:
  struct Entry {
    int64_t calls = 0;
    int64_t bytes = 0;
  };
  using Key = std::pair<std::string, std::string>;  // group name ("fsdp/0"), operation ("all_gather")

  void add(const std::string& group, const std::string& operation, int64_t bytes);
  Entry entry(const std::string& group,
              const std::string& operation) const;  // zeros when nothing was counted
  std::map<Key, Entry> entries() const;
  int64_t total_bytes() const;
  void reset();

 private:
  mutable std::mutex mutex_;
  std::map<Key, Entry> entries_;
};

}  // namespace hyperion::parallel
