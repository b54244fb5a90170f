#include "trainer/plan/caching_allocator.h"

#include <algorithm>

namespace hyperion::trainer {
namespace {

// c10/cuda/CUDACachingAllocator.cpp: tensors of up to 1 MiB share pages of 2 MiB, larger ones a segment that
// grows by pages of 20 MiB. A tensor takes the smallest free block that holds it, which is split if more than
// 1 MiB would stay unused.
constexpr int64_t kSmallTensor = 1 << 20, kSmallPage = 2 << 20, kPage = 20 << 20;

int64_t round_up(int64_t bytes, int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace

CachingAllocator::Block CachingAllocator::allocate(double bytes, Content content) {
  constexpr double kLargest = 1e13;  // of a tensor: more than any GPU has, and a million of them fit int64
  Block block{.bytes = round_up(static_cast<int64_t>(std::min(bytes, kLargest)), alignment_),
              .content = content};
  if (block.bytes == 0) return {};
  live_ += block.bytes;
  contents_[static_cast<size_t>(content)] += block.bytes;
  if (live_ > max_live_) {
    max_live_ = live_;
    peak_ = contents_;
  }
  if (block.bytes <= kSmallTensor) {
    block.start = kSmall;
    max_small_ = std::max(max_small_, small_ += block.bytes);
    return block;
  }
  auto fit = free_.end();
  for (auto range = free_.begin(); range != free_.end(); ++range)
    if (range->bytes >= block.bytes && (fit == free_.end() || range->bytes < fit->bytes)) {
      fit = range;
      if (range->bytes == block.bytes) break;
    }
  if (fit == free_.end()) {  // the segment grows; a free block at its end is part of the new one
    if (free_.empty() || free_.back().end() != mapped_) free_.push_back({mapped_, 0});
    fit = free_.end() - 1;
    const int64_t grown = round_up(block.bytes - fit->bytes, kPage);
    mapped_ += grown;
    fit->bytes += grown;
  }
  block.start = fit->start;
  fit->start += block.bytes;
  fit->bytes -= block.bytes;
  if (fit->bytes > kSmallTensor) return block;
  block.unused = fit->bytes;
  free_.erase(fit);
  return block;
}

void CachingAllocator::free(Block& block) {
  if (!block) return;
  live_ -= block.bytes;
  contents_[static_cast<size_t>(block.content)] -= block.bytes;
  if (block.start == kSmall) {
    small_ -= block.bytes;
  } else {
    const Range range{block.start, block.bytes + block.unused};
    auto after = std::ranges::lower_bound(free_, range.start, {}, &Range::start);
    const bool joins_before = after != free_.begin() && (after - 1)->end() == range.start;
    const bool joins_after = after != free_.end() && range.end() == after->start;
    if (joins_before && joins_after) {
      (after - 1)->bytes += range.bytes + after->bytes;
      free_.erase(after);
    } else if (joins_before) {
      (after - 1)->bytes += range.bytes;
    } else if (joins_after) {
      *after = {range.start, range.bytes + after->bytes};
    } else {
      free_.insert(after, range);
    }
  }
  block = {};
}

int64_t CachingAllocator::reserved() const {
  return mapped_ + round_up(max_small_, kSmallPage);
}

}  // namespace hyperion::trainer
