// Replays libtorch's caching allocator with expandable segments: which of the blocks that tensors have freed
// hold later tensors, and how many bytes are reserved for them in the end. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace hyperion::trainer {

// What a tensor holds.
enum class Content : uint8_t { kStates, kGradients, kGathered, kActivations, kWorking };
inline constexpr size_t kContents = 5;

class CachingAllocator {
 public:
  struct Block {
    int64_t start = -1, bytes = 0;  // start is -1 without memory, and kSmall in a small tensor
    Content content = Content::kWorking;
    explicit operator bool() const { return start != -1; }
  };

  Block allocate(double bytes, Content content);
  void free(Block& block);  // and empties `block`; nothing if it is empty

  int64_t reserved() const;
  // The bytes of each content when the sum was the largest.
  const std::array<int64_t, kContents>& peak() const { return peak_; }

 private:
  static constexpr int64_t kSmall = -2;

  void add_free(int64_t start, int64_t bytes);
  void remove_free(std::map<int64_t, int64_t>::iterator block);

  std::map<int64_t, int64_t> free_;                      // bytes by start
  std::set<std::pair<int64_t, int64_t>> free_by_bytes_;  // bytes, start
  std::map<int64_t, int64_t> spare_;                     // what a block has beyond its tensor, by start
  int64_t mapped_ = 0, live_ = 0, most_live_ = 0, small_ = 0, most_small_ = 0;
  std::array<int64_t, kContents> contents_{}, peak_{};
};

}  // namespace hyperion::trainer
