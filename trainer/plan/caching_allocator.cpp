#include "trainer/plan/caching_allocator.h"

#include <algorithm>
#include <iterator>

namespace hyperion::trainer {
namespace {

// c10/cuda/CUDACachingAllocator.cpp: tensors of up to 1 MiB share pages of 2 MiB, larger ones a segment that
// grows by pages of 20 MiB, and a block is split if it leaves more than 1 MiB.
constexpr int64_t kAlignment = 512, kSmallTensor = 1 << 20, kSmallPage = 2 << 20, kPage = 20 << 20;

int64_t round_up(int64_t bytes, int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace

CachingAllocator::Block CachingAllocator::allocate(double bytes, Content content) {
  Block block{.bytes = round_up(static_cast<int64_t>(std::min(bytes, 1e18)), kAlignment), .content = content};
  if (block.bytes == 0) return {};
  live_ += block.bytes;
  contents_[static_cast<size_t>(content)] += block.bytes;
  if (live_ > most_live_) {
    most_live_ = live_;
    peak_ = contents_;
  }
  if (block.bytes <= kSmallTensor) {
    block.start = kSmall;
    most_small_ = std::max(most_small_, small_ += block.bytes);
    return block;
  }
  const auto fit = free_by_bytes_.lower_bound({block.bytes, -1});
  int64_t room = 0;
  if (fit != free_by_bytes_.end()) {
    room = fit->first;
    block.start = fit->second;
    remove_free(free_.find(block.start));
  } else {  // the segment grows; a free block at its end is part of the new one
    block.start = mapped_;
    if (!free_.empty()) {
      const auto last = std::prev(free_.end());
      if (last->first + last->second == mapped_) {
        block.start = last->first;
        room = last->second;
        remove_free(last);
      }
    }
    const int64_t grown = round_up(block.bytes - room, kPage);
    mapped_ += grown;
    room += grown;
  }
  if (room - block.bytes > kSmallTensor)
    add_free(block.start + block.bytes, room - block.bytes);
  else  // the rest is lost while the tensor lives
    spare_[block.start] = room - block.bytes;
  return block;
}

void CachingAllocator::free(Block& block) {
  if (!block) return;
  live_ -= block.bytes;
  contents_[static_cast<size_t>(block.content)] -= block.bytes;
  if (block.start == kSmall) {
    small_ -= block.bytes;
  } else {
    int64_t start = block.start, bytes = block.bytes;
    if (const auto spare = spare_.extract(start)) bytes += spare.mapped();
    const auto after = free_.lower_bound(start);
    if (after != free_.end() && after->first == start + bytes) {
      bytes += after->second;
      remove_free(after);
    }
    const auto next = free_.lower_bound(start);
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == start) {
        start = before->first;
        bytes += before->second;
        remove_free(before);
      }
    }
    add_free(start, bytes);
  }
  block = {};
}

int64_t CachingAllocator::reserved() const {
  return mapped_ + round_up(most_small_, kSmallPage);
}

void CachingAllocator::add_free(int64_t start, int64_t bytes) {
  free_[start] = bytes;
  free_by_bytes_.insert({bytes, start});
}

void CachingAllocator::remove_free(std::map<int64_t, int64_t>::iterator block) {
  free_by_bytes_.erase({block->second, block->first});
  free_.erase(block);
}

}  // namespace hyperion::trainer
