// Replays libtorch's caching allocator with expandable segments: which of the blocks that tensors have freed
// hold later tensors, and how many bytes are reserved for them in the end. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hyperion::trainer {

// Content says what a tensor holds.
enum class Content : uint8_t { kStates, kGradients, kUnsharded, kGathered, kActivations, kWorking };
inline constexpr size_t kContents = 6;

class CachingAllocator {
 public:
  struct Block {
    int64_t start = -1;             // -1: no memory; kSmall: a small tensor
    int64_t bytes = 0, unused = 0;  // of the tensor, and behind it
    Content content = Content::kWorking;
    explicit operator bool() const { return start != -1; }
  };

  // A tensor takes a multiple of `alignment` bytes.
  explicit CachingAllocator(int64_t alignment = 512) : alignment_(alignment) {}

  Block allocate(double bytes, Content content);
  void free(Block& block);  // and empties `block`; nothing if it is empty

  int64_t reserved() const;
  // The bytes of each content when the sum was the largest.
  const std::array<int64_t, kContents>& peak() const { return peak_; }

 private:
  static constexpr int64_t kSmall = -2;
  struct Range {
    int64_t start, bytes;
    int64_t end() const { return start + bytes; }
  };

  int64_t alignment_;
  std::vector<Range> free_;  // in ascending order, no two adjacent; few, so that a search reads all
  int64_t mapped_ = 0, live_ = 0, max_live_ = 0, small_ = 0, max_small_ = 0;
  std::array<int64_t, kContents> contents_{}, peak_{};
};

}  // namespace hyperion::trainer
