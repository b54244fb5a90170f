#include "data/tokenizer/bpe_merge.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace hyperion::data {
namespace {

constexpr size_t kShortWord = 100;  // symbols; measured: the two ways take the same time at 80 to 150

}  // namespace

MergeTable::MergeTable(size_t expected_pairs) {
  unsigned bits = 4;
  while ((size_t{1} << bits) < 2 * expected_pairs) ++bits;
  resize(bits);
}

void MergeTable::resize(unsigned bits) {
  const std::vector<Slot> old =
      std::exchange(slots_, std::vector<Slot>(size_t{1} << bits, Slot{kEmpty, kNone}));
  mask_ = slots_.size() - 1;
  shift_ = 64 - bits;
  used_ = 0;
  for (const Slot& slot : old)
    if (slot.key != kEmpty)
      insert(static_cast<int32_t>(slot.key >> 32), static_cast<int32_t>(slot.key), slot.merge);
}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  if (2 * (used_ + 1) > slots_.size()) resize(64 - shift_ + 1);
  const uint64_t key = key_of(left, right);
  size_t i = (key * kMix) >> shift_;
  while (slots_[i].key != key && slots_[i].key != kEmpty) i = (i + 1) & mask_;
  used_ += slots_[i].key == kEmpty;
  slots_[i] = {key, merge};
}

void WordMerger::merge(const MergeTable& table, std::vector<int32_t>& symbols) {
  if (symbols.size() < 2) return;
  pairs_.resize(symbols.size());
  for (size_t i = 0; i + 1 < symbols.size(); ++i) pairs_[i] = table.find(symbols[i], symbols[i + 1]);
  pairs_.back() = MergeTable::kNone;
  symbols.size() <= kShortWord ? merge_short(table, symbols) : merge_long(table, symbols);
}

void WordMerger::merge_short(const MergeTable& table, std::vector<int32_t>& symbols) {
  size_t count = symbols.size();
  while (true) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (pairs_[i].rank < pairs_[best].rank) best = i;
    if (pairs_[best].rank == MergeTable::kNone.rank) break;
    symbols[best] = pairs_[best].id;
    std::move(symbols.begin() + best + 2, symbols.begin() + count, symbols.begin() + best + 1);
    std::move(pairs_.begin() + best + 2, pairs_.begin() + count, pairs_.begin() + best + 1);
    --count;
    pairs_[best] = best + 1 < count ? table.find(symbols[best], symbols[best + 1]) : MergeTable::kNone;
    if (best > 0) pairs_[best - 1] = table.find(symbols[best - 1], symbols[best]);
  }
  symbols.resize(count);
}

// Symbols are a linked list that a merge shrinks in place, at its left symbol; the queue holds (rank,
// position), and an entry is stale once the pair at that position has another rank.
void WordMerger::merge_long(const MergeTable& table, std::vector<int32_t>& symbols) {
  const auto count = static_cast<uint32_t>(symbols.size());
  previous_.resize(count);
  next_.resize(count);
  queue_.clear();
  const auto entry = [&](uint32_t i) { return uint64_t{pairs_[i].rank} << 32 | i; };
  for (uint32_t i = 0; i < count; ++i) {
    previous_[i] = i - 1;  // wraps at 0: checked before use
    next_[i] = i + 1;
    if (pairs_[i].rank != MergeTable::kNone.rank) queue_.push_back(entry(i));
  }
  std::make_heap(queue_.begin(), queue_.end(), std::greater<>());
  const auto look_up = [&](uint32_t i) {
    pairs_[i] = next_[i] < count ? table.find(symbols[i], symbols[next_[i]]) : MergeTable::kNone;
    if (pairs_[i].rank == MergeTable::kNone.rank) return;
    queue_.push_back(entry(i));
    std::push_heap(queue_.begin(), queue_.end(), std::greater<>());
  };
  while (!queue_.empty()) {
    const uint64_t top = queue_.front();
    std::pop_heap(queue_.begin(), queue_.end(), std::greater<>());
    queue_.pop_back();
    const auto i = static_cast<uint32_t>(top);
    if (pairs_[i].rank != top >> 32) continue;
    const uint32_t gone = next_[i];
    symbols[i] = pairs_[i].id;
    pairs_[gone] = MergeTable::kNone;
    next_[i] = next_[gone];
    if (next_[i] < count) previous_[next_[i]] = i;
    look_up(i);
    if (i > 0) look_up(previous_[i]);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i < count; i = next_[i]) symbols[kept++] = symbols[i];
  symbols.resize(kept);
}

}  // namespace hyperion::data
